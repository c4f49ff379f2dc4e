"""What the scripted model says, turn by turn, over both interfaces."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from .scripted_model import LAST_WORDS, scripted_model
from .turns import MOST, Turn, follow, next_turn

OLD, NEW = "0" * 32, "f" * 32


def test_a_turn_is_repeated_until_what_comes_back_has_its_text() -> None:
    turns = [Turn("slow"), follow("rested"), Turn("plain")]
    asks = Turn("task_result", {"reference": NEW, "wait_s": 60.0})
    assert next_turn(turns, []) == Turn("slow")
    assert next_turn(turns, [f"instead of {OLD} it is {NEW}"]) == asks
    assert next_turn(turns, [f"it is {NEW}", "not yet"]) == asks
    assert next_turn(turns, [f"it is {NEW}", "not yet", "rested"]) == Turn("plain")
    assert next_turn(turns, [f"it is {NEW}", *["not yet"] * MOST]) == Turn("plain")
    assert next_turn(turns, [f"it is {NEW}", "rested", "plain"]) is None


def events_of(url: str, path: str, body: dict[str, Any]) -> list[Any]:
    reply = httpx.post(f"{url}{path}", json=body, trust_env=False, verify=False)
    data = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


@pytest.mark.parametrize("namespace", ["", "mcp__b"])
def test_the_model_of_responses_calls_the_tool_by_its_name_there_and_sees_the_result(namespace: str) -> None:
    tool: dict[str, Any] = {"type": "function", "name": "plain" if namespace else "mcp__b__plain"}
    tools = [{"type": "namespace", "name": namespace, "tools": [tool]} if namespace else tool]
    with scripted_model([Turn("plain", {"x": 3})]) as model:
        _, called, _ = events_of(model.url, "/responses", {"tools": tools, "input": []})
        assert called["item"]["name"] == tool["name"]
        assert called["item"].get("namespace", "") == namespace
        assert json.loads(called["item"]["arguments"]) == {"x": 3}
        result = {"type": "function_call_output", "call_id": called["item"]["call_id"], "output": "3"}
        _, said, _ = events_of(model.url, "/responses", {"tools": tools, "input": [result]})
        assert said["item"]["content"][0]["text"] == LAST_WORDS
    assert model.shown == ["3"]
    assert len(model.requests) == 2


def test_the_model_of_chat_completions_calls_the_tool_and_sees_the_result() -> None:
    tools = [{"type": "function", "function": {"name": "b_plain"}}]
    with scripted_model([Turn("plain", {"x": 3})]) as model:
        called, ended = events_of(model.url, "/chat/completions", {"tools": tools, "messages": []})
        (call,) = called["choices"][0]["delta"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("b_plain", {"x": 3})
        assert ended["choices"][0]["finish_reason"] == "tool_calls"
        messages = [{"role": "tool", "content": [{"type": "text", "text": "3"}]}]
        said, _ = events_of(model.url, "/chat/completions", {"tools": tools, "messages": messages})
        assert said["choices"][0]["delta"]["content"] == LAST_WORDS
        # A title for the conversation, say.
        events_of(model.url, "/chat/completions", {"messages": []})
    assert model.shown == ["3"]
    assert not model.missing


def test_a_tool_that_the_host_does_not_offer_is_missing() -> None:
    with scripted_model([Turn("plain")]) as model:
        tools = [{"type": "function", "name": "plainly"}]
        events_of(model.url, "/responses", {"tools": tools, "input": []})
    assert model.missing == ["plain"]
