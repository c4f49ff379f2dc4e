"""The ways of a model to go on with a call: its repetition, its reference, and a question for a person."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.torture.run import Servers, servers
from tests.kit.command import until
from tests.kit.piped_bridge import CURRENT, OLDER, PipedBridge, piped_bridge


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(0, tmp_path_factory.mktemp("servers")) as running:
        yield running


def _text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


def _calls(server: Servers, intent: str) -> int:
    return sum(one.method == "tools/call" and one.intent == intent for one in server.ledger())


def _promised(bridge: PipedBridge, tool: str, arguments: dict[str, Any]) -> str:
    told = _text(bridge.call(tool, arguments))
    assert "is still running" in told
    return re.findall(r'reference "(\w+)"', told)[0]


def test_a_repetition_has_the_outcome_that_came_while_nobody_waited(server: Servers, tmp_path: Path) -> None:
    arguments = {"intent": "ended meanwhile", "seconds": 1.0}
    with piped_bridge(
        server.endpoint("fastmcp"), tmp_path / "journal.sqlite3", "--answer-within", 0.3
    ) as bridge:
        reference = _promised(bridge, "rest", arguments)
        until(lambda: f'reference "{reference}": rest: ended' in _text(bridge.call("task_list")))
        result = bridge.call("rest", arguments)
    assert json.loads(_text(result))["intent"] == "ended meanwhile"
    assert "earlier, equal call" in result["content"][1]["text"]
    assert _calls(server, "ended meanwhile") == 1


def test_a_host_answers_a_question_that_it_was_asked_as_it_waited_for_a_reference(
    server: Servers, tmp_path: Path
) -> None:
    arguments = {"intent": "asked late", "seconds": 1.5}
    with piped_bridge(
        server.endpoint("fastmcp"),
        tmp_path / "journal.sqlite3",
        *("--answer-within", 0.5),
        version=CURRENT,
        capabilities={"elicitation": {"form": {}}},
    ) as bridge:
        waited = {"reference": _promised(bridge, "greet", arguments)}
        asked = until(lambda: _asking(bridge.call("task_result", waited)))
        answers = {key: {"action": "accept", "content": {"name": "Ada"}} for key in asked["inputRequests"]}
        bridge.call("task_result", waited, requestState=asked["requestState"], inputResponses=answers)
        result = until(lambda: _made(bridge.call("task_result", waited)))
    assert result["intent"] == "asked late"
    (sent,) = [one.answers for one in server.ledger() if one.answers and one.method == "tasks/update"]
    assert [answer["content"] for answer in sent.values()] == [{"name": "Ada"}]


def _asking(result: dict[str, Any]) -> dict[str, Any] | None:
    return result if result["resultType"] == "input_required" else None


def _made(result: dict[str, Any]) -> dict[str, Any] | None:
    text = _text(result)
    return dict(json.loads(text)) if text.startswith("{") else None


def test_no_line_is_promised_for_a_question_that_the_journal_does_not_have(
    server: Servers, tmp_path: Path
) -> None:
    """The server asks before it makes a task. The journal has no record of the call."""
    with piped_bridge(server.endpoint("fastmcp"), tmp_path / "journal.sqlite3", version=OLDER) as bridge:
        began = time.monotonic()
        number = bridge.request("tools/call", {"name": "first", "arguments": {"intent": "asked first"}})
        reply = bridge.reply_to(number)
        assert "the host cannot be asked" in reply["error"]["message"]
        assert time.monotonic() - began < 40  # it is not answered in between, after 45 seconds
