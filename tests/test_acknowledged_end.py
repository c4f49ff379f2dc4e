"""An end that a server tells once, as it acknowledges an answer, by each way in."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from mcp_tasks_client import MemoryJournal, TasksClient, TasksExtension, TasksTransport, tasks_http_client
from tests.kit.current_server import QUESTION, QUICK, CurrentServer, Fault, asking, at_loopback, completed

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it has read to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]


@pytest.mark.parametrize("way", ["by URL", "over a client", "dropped in", "beneath", "around"])
async def test_an_end_that_comes_only_with_the_acknowledgement_of_an_answer_is_the_end(way: str) -> None:
    """The server forgets the task as soon as it has told of the end."""
    asks = asking(k=QUESTION)

    def get(method: str, params: dict[str, Any]) -> dict[str, Any]:
        if server.counts["tasks/update"]:
            raise Fault(-32602, "Unknown task")
        return {**asks, "resultType": "complete"}

    server = CurrentServer(calls=[asks], gets=[get])
    server.replies["tasks/update"] = {**completed(), "resultType": "complete"}
    options: dict[str, Any] = {"journal": MemoryJournal(), "poll": QUICK}

    async def accept(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={})

    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(20))
        url = await stack.enter_async_context(at_loopback(server))
        match way:
            case "by URL":
                client: Any = TasksClient(url, elicitation=accept, **options)
            case "over a client":
                sdk = await stack.enter_async_context(mcp.Client(streamable_http_client(url)))
                client = TasksClient(sdk, endpoint="server", elicitation=accept, **options)
            case "dropped in":
                extension = TasksExtension(endpoint="server", elicitation=accept, **options)
                client = mcp.Client(streamable_http_client(url), extensions=[extension])
            case "beneath":
                http = await stack.enter_async_context(tasks_http_client(elicitation=accept, **options))
                client = mcp.Client(streamable_http_client(url, http_client=http))
            case _:
                transport = TasksTransport(
                    streamable_http_client(url), endpoint="s", elicitation=accept, **options
                )
                client = mcp.Client(transport)
        client = await stack.enter_async_context(client)
        result = await client.call_tool("tool", {})
        assert result.structured_content == {"n": 1}
    assert server.counts["tasks/update"] == 1
