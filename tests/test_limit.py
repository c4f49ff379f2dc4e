"""A test that takes too long says what it waited with."""

from __future__ import annotations

import anyio
import pytest

from mcp_tasks_client.testing import ScriptedServer, reply, text_result
from tests.engine.world import World
from tests.kit.json_rpc_host import asking_server, hosted

pytestmark = pytest.mark.anyio


async def wait_for_ever() -> None:
    server = asking_server()
    async with hosted(server) as host:  # its calls take as long as they take
        for _ in range(2):
            await host.call("plain")
    async with hosted(server, limit_s=0.5):
        await anyio.sleep_forever()


async def test_what_was_sent_until_then_stands_in_the_failure() -> None:
    with pytest.raises(TimeoutError, match=r"not over after 0.5 s\. .*tools/call 2 times; at last .*call$"):
        await wait_for_ever()


async def test_an_error_of_a_test_in_its_limit_is_the_test_s_own() -> None:
    with pytest.raises(TimeoutError, match="of its own"):
        async with World().client():
            raise TimeoutError("of its own")


async def test_a_scripted_server_shows_what_it_was_sent() -> None:
    server = ScriptedServer()
    server.tool("tool", [reply(text_result("done"))])
    assert repr(server) == "<ScriptedServer scripted was sent nothing>"
    session = server.session()
    for _ in range(2):
        await session.ask("server/discover", {})
    assert repr(server) == "<ScriptedServer scripted was sent server/discover: 2>"
