"""An answer that the server refuses, over every way in: the question opens again, with the server's words."""

from __future__ import annotations

from typing import Any, Final

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import BlockingTasksClient, Inbox, InputUnansweredError, MemoryJournal, PollPolicy
from mcp_tasks_client.testing import ScriptedServer, ask, complete, form, text_result
from tests.kit.json_rpc_host import hosted
from tests.kit.ways import (
    Way,
    around,
    beneath,
    by_client,
    by_client_with_extension,
    by_url,
    by_wrapped_client,
    extended,
    streamed,
)

from .test_questions import ask as asked_by_a_host
from .test_questions import go_on, text

pytestmark = pytest.mark.anyio

UNKNOWN: Final = "version 9.9 does not exist"
LIMIT_S: Final = 20.0
QUICK: Final = PollPolicy(floor_s=0.005, ceiling_s=0.05)


def shop() -> ScriptedServer:
    def refuse(answers: Any) -> str | None:
        return UNKNOWN if "9.9" in str(answers) else None

    server = ScriptedServer()
    which = ask("version", form("Which version?", version="string"), refuse=refuse)
    server.tool("deploy", [which, complete(text_result("deployed"))], poll_interval_ms=10, settle_s=0.0)
    return server


def sent(server: ScriptedServer) -> list[str]:
    updates = server.witness.log("tasks/update")
    return [update.params["inputResponses"]["version"]["content"]["version"] for update in updates]


class Person:
    """Says 9.9 until it hears why not."""

    def __init__(self) -> None:
        self.told: list[str | None] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.told.append(context.question.refused)
        number = "9.9" if context.question.refused is None else "1.2"
        return ElicitResult(action="accept", content={"version": number})


@pytest.mark.parametrize(
    "way", [by_client, by_url, by_wrapped_client, by_client_with_extension, beneath, around]
)
async def test_the_callback_is_asked_again_with_the_servers_words(way: Way) -> None:
    server, person = shop(), Person()
    with anyio.fail_after(LIMIT_S):
        async with way(server, journal=MemoryJournal(), poll=QUICK, elicitation=person) as call:
            result = await call("deploy")
    assert result["content"][0]["text"] == "deployed"
    assert person.told == [None, UNKNOWN]
    assert sent(server) == ["9.9", "9.9", "1.2"]
    assert not [one for one in server.witness.broken() if "answered in" in one]


async def test_the_callback_of_an_extension_is_asked_again() -> None:
    server, person = shop(), Person()
    with anyio.fail_after(LIMIT_S):
        async with extended(server, journal=MemoryJournal(), poll=QUICK, elicitation=person) as client:
            result = await client.call_tool("deploy", {})
    assert result.content[0].text == "deployed"  # type: ignore[union-attr]
    assert person.told == [None, UNKNOWN]
    server.witness.check()


async def test_a_plain_function_of_a_blocking_client_is_asked_again() -> None:
    server, told = shop(), list[str | None]()

    def answer(context: Any, params: Any) -> ElicitResult:
        told.append(context.question.refused)
        number = "9.9" if len(told) == 1 else "1.2"
        return ElicitResult(action="accept", content={"version": number})

    def work() -> str:
        with BlockingTasksClient(
            server.session(), journal=MemoryJournal(), poll=QUICK, elicitation=answer
        ) as client:
            return str(client.call_tool("deploy").content[0].text)  # type: ignore[union-attr]

    with anyio.fail_after(LIMIT_S):
        assert await anyio.to_thread.run_sync(work) == "deployed"
    assert told == [None, UNKNOWN]


@pytest.mark.parametrize("way", ["http", "streams"])
async def test_the_hosts_own_session_is_asked_again_and_its_person_reads_why(way: str) -> None:
    server, journal = shop(), MemoryJournal()
    opened: Any = hosted(server, journal) if way == "http" else streamed(server, journal=journal, poll=QUICK)
    with anyio.fail_after(LIMIT_S):
        async with opened as host:
            first = await asked_by_a_host(host, "deploy")
            assert message_of(first) == "Which version?"
            second = await go_on(host, "deploy", first, {"version": version("9.9")})
            assert message_of(second["result"]) == f"Which version?\n\nThe last answer was refused: {UNKNOWN}"
            done = await go_on(host, "deploy", second["result"], {"version": version("1.2")})
    assert text(done) == "deployed"
    server.witness.check()


def version(number: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"version": number}}


def message_of(result: dict[str, Any]) -> str:
    return str(result["inputRequests"]["version"]["params"]["message"])


@pytest.mark.parametrize("way", [by_client, by_url, by_wrapped_client])
async def test_without_a_callback_each_refusal_parks_the_call_and_the_inbox_shows_why(way: Way) -> None:
    server, journal = shop(), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with way(server, journal=journal, poll=QUICK) as call, Inbox(journal) as inbox:
            for number, why in (("9.9", None), ("1.2", UNKNOWN)):
                with pytest.raises(InputUnansweredError):
                    await call("deploy", "key")
                (question,) = await inbox.questions()
                assert question.refused == why
                await question.accept({"version": number})
            result = await call("deploy", "key")
    assert result["content"][0]["text"] == "deployed"
    assert sent(server) == ["9.9", "9.9", "1.2"]
