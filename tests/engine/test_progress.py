"""What the host is told of a task, beside what the server tells itself. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks_client.engine.progress import Progress, ProgressByToken
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.task import Task, read_task


def task(message: str | None) -> Task:
    reply: JSONObject = {
        "taskId": "T",
        "status": "working",
        "createdAt": "2026-01-01T00:00:00Z",
        "lastUpdatedAt": "2026-01-01T00:00:00Z",
        "ttlMs": None,
    }
    return read_task({**reply, **({} if message is None else {"statusMessage": message})})


def by_server(number: Any, token: str | int = "p") -> JSONObject:
    params = {"progressToken": token, "progress": number}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def said(sent: list[JSONObject]) -> list[tuple[float, str | None]]:
    return [(one["params"]["progress"], one["params"].get("message")) for one in sent]


def test_each_status_message_is_told_once_while_it_lasts() -> None:
    sent: list[JSONObject] = []
    progress = Progress("p", sent.append)
    for message in (None, "one", "one", "two", None, "two", "one"):
        progress.tell(task(message))
    assert said(sent) == [(1.0, "one"), (2.0, "two"), (3.0, "one")]


def test_a_server_that_counts_itself_takes_over_and_the_numbers_grow_from_there() -> None:
    sent: list[JSONObject] = []
    progress = Progress("p", sent.append)
    progress.tell(task("one"))
    for number, message in ((0.25, "two"), (0.5, "two"), (0.75, "three"), (1, "four")):
        progress.hear(by_server(number))
        progress.tell(task(message))
    first, *numbers = [number for number, _ in said(sent)]
    assert first == 1.0
    assert numbers == sorted(set(numbers))
    assert [message for _, message in said(sent) if message is not None] == ["one", "two", "three", "four"]


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**400, "1", None])
def test_a_number_that_is_none_does_not_spoil_ours(number: Any) -> None:
    sent: list[JSONObject] = []
    progress = Progress("p", sent.append)
    progress.hear(by_server(number))
    progress.tell(task("one"))
    assert said(sent)[1:] == [(1.0, "one")]


def test_a_token_that_is_used_twice_names_the_later_call() -> None:
    sent: list[JSONObject] = []
    tokens = ProgressByToken(sent.append)
    first = tokens.telling("p")
    first.__enter__()
    with tokens.telling("p") as (second_tell,):
        first.__exit__(None, None, None)
        tokens.hear(by_server(7)["params"])
        second_tell(task("one"))
    assert said(sent)[0][0] > 7


def test_a_host_that_wants_no_progress_gets_none() -> None:
    with ProgressByToken([].append).telling(None) as tell:
        assert tell == ()


@pytest.mark.parametrize("token", [None, True, 1.5, [], {}])
def test_what_is_no_token_is_nobodys(token: Any) -> None:
    sent: list[JSONObject] = []
    tokens = ProgressByToken(sent.append)
    with tokens.telling(1) as (tell,):
        tokens.hear({"progressToken": token, "progress": 7})
        tell(task("one"))
    assert said(sent) == [(1.0, "one")]
