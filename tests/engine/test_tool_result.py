"""A result as the host gets it: unchanged, checked where the server said what it would return."""

from __future__ import annotations

import threading
from typing import Any, cast

import anyio
import pytest
from mcp_types import TextContent, Tool

from mcp_tasks_client import ConnectionLostError, RemoteProtocolError
from mcp_tasks_client.engine.tool_result import OutputSchema, read_result
from mcp_tasks_client.protocol import json_schema
from mcp_tasks_client.sessions.base import Session
from mcp_tasks_client.sessions.oddities import note_oddity

pytestmark = pytest.mark.anyio

OBJECT_WITH_N = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
TASK = "task-0123456789abcdef"


class Catalogue:
    """A session that lists one tool, whose schema may change."""

    endpoint = "server"

    def __init__(self, *schemas: Any) -> None:
        self.schemas = list(schemas)
        self.asked: list[bool] = []

    async def tool(self, name: str, *, fresh: bool = False, context: object = None) -> Tool | None:
        self.asked.append(fresh)
        schema = self.schemas.pop(0) if len(self.schemas) > 1 else self.schemas[0]
        if isinstance(schema, Exception):
            raise schema
        if schema is ...:
            await anyio.sleep_forever()
        if schema is None:
            return None
        return Tool(name=name, input_schema={"type": "object"}, output_schema=schema)


async def read(
    raw: dict[str, Any],
    *schemas: Any,
    tool: str | None = "tool",
    deadline: float = 60,
    output_schema: OutputSchema = "raise",
) -> Any:
    catalogue = Catalogue(*schemas)
    until = anyio.current_time() + deadline if deadline else None
    session = cast(Session, catalogue)
    result = await read_result(raw, tool, TASK, session, until, output_schema=output_schema)
    return result, catalogue


def structured(value: Any) -> dict[str, Any]:
    return {"content": [], "structuredContent": value}


async def test_a_result_that_matches_comes_as_it_was_sent() -> None:
    raw = {**structured({"n": 1}), "x-more": {"a": 1}, "content": [{"type": "text", "text": "hi", "x": 1}]}
    result, catalogue = await read(raw, OBJECT_WITH_N)
    assert result.structured_content == {"n": 1}
    assert result.model_extra == {"x-more": {"a": 1}}
    assert result.content[0].text == "hi"
    assert result.content[0].model_extra == {"x": 1}
    assert catalogue.asked == [False]


async def test_a_mismatch_is_told_only_after_the_schema_was_asked_for_again() -> None:
    result, catalogue = await read(structured({"n": 1}), {"required": ["old"]}, OBJECT_WITH_N)
    assert result.structured_content == {"n": 1}
    assert catalogue.asked == [False, True]
    raw = structured({"n": TASK})
    with pytest.raises(
        RemoteProtocolError, match=r"does not match the tool's output schema, \$\.n: the v"
    ) as caught:
        await read(raw, OBJECT_WITH_N)
    assert caught.value.data is raw
    assert TASK not in str(caught.value)


async def test_a_mismatch_may_be_no_more_than_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    result, catalogue = await read(structured({"n": TASK}), OBJECT_WITH_N, output_schema="warn")
    assert result.structured_content == {"n": TASK}
    assert catalogue.asked == [False, True]
    (told,) = caplog.messages
    assert "does not match the tool's output schema" in told
    assert TASK not in told


async def test_without_a_check_no_schema_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    result, catalogue = await read(structured({"n": TASK}), OBJECT_WITH_N, output_schema="off")
    assert result.structured_content == {"n": TASK}
    assert catalogue.asked == []
    assert not caplog.messages


async def test_a_result_without_structured_content_does_not_match() -> None:
    with pytest.raises(RemoteProtocolError, match="it has no structuredContent"):
        await read({"content": []}, {})


@pytest.mark.parametrize("at_size", [1, 20_000])
async def test_a_pattern_that_cannot_be_read_is_not_held_against_the_result(
    at_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A large result is checked in a thread."""
    note_oddity.cache_clear()
    names = {"type": "object", "properties": {"name": {"pattern": r"^[\w-.]+$"}}}
    schema = {**OBJECT_WITH_N, "properties": {"n": {"type": "integer"}, "names": {"items": names}}}
    for _ in range(2):
        result, _ = await read(structured({"n": 1, "names": [{"name": "ada"}] * at_size}), schema)
        assert result.structured_content["n"] == 1
    (told,) = caplog.messages
    assert r"^[\w-.]+$" in told
    with pytest.raises(RemoteProtocolError, match="does not match"):
        await read(structured({"n": "x", "names": [{"name": "ada"}]}), schema)


@pytest.mark.parametrize(
    "schema",
    [None, ConnectionLostError("gone"), {"type": "nonsense"}, {"$ref": "https://a.example/never-fetched"}],
)
async def test_what_cannot_be_known_of_the_schema_is_not_held_against_the_result(schema: Any) -> None:
    result, _ = await read(structured("x"), schema)
    assert result.structured_content == "x"


async def test_a_tool_list_that_does_not_come_holds_up_no_result_beyond_its_deadline() -> None:
    with anyio.fail_after(30):
        result, _ = await read(structured("x"), ..., deadline=0.01)
    assert result.structured_content == "x"


@pytest.mark.parametrize(
    ("tool", "deadline", "error"), [(None, 60, False), ("tool", 0, False), ("tool", 60, True)]
)
async def test_nothing_is_checked_of_an_unknown_tool_or_an_error_or_without_a_deadline(
    tool: str | None, deadline: float, error: bool
) -> None:
    _, catalogue = await read({**structured("x"), "isError": error}, False, tool=tool, deadline=deadline)
    assert catalogue.asked == []


async def test_what_costs_too_much_to_check_passes_with_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    result, _ = await read(structured("x"), {"$ref": "#/$defs/d0", "$defs": {**twice, "d30": {}}})
    assert result.structured_content == "x"
    (told,) = caplog.messages
    assert told.startswith("The output of 'tool' is not checked: the schema unfolds to too much")


async def test_a_name_without_a_utf_8_form_is_an_error_of_ours() -> None:
    raw = {"content": [], "\ud800": 1}
    with pytest.raises(RemoteProtocolError, match="not a CallToolResult, the name of a member") as caught:
        await read(raw)
    assert caught.value.data is raw


@pytest.mark.parametrize("index", [0, 499, 500, 2500])
async def test_what_is_no_result_says_where(index: int) -> None:
    blocks: list[Any] = [{"type": "text", "text": "x"} for _ in range(3000)]
    blocks[index] = 7
    with pytest.raises(RemoteProtocolError, match=rf"not a CallToolResult, content\.{index}\.") as caught:
        await read({"content": blocks}, None)
    assert caught.value.data == {"content": blocks}
    with pytest.raises(RemoteProtocolError, match="content: Field required"):
        await read({}, None)


async def test_a_large_content_is_read_whole_and_in_order() -> None:
    blocks = [{"type": "text", "text": str(n)} for n in range(2500)]
    result, _ = await read({"content": blocks, "isError": True}, None)
    assert [cast(TextContent, block).text for block in result.content] == [str(n) for n in range(2500)]
    assert result.is_error


async def test_the_event_loop_is_not_held_while_a_large_result_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check of what is large runs in another thread, and a turn of the loop comes after each slice."""
    from mcp_tasks_client.engine import tool_result

    threads: list[int] = []

    def find_mismatch(*args: Any, **options: Any) -> str | None:
        threads.append(threading.get_ident())
        return json_schema.find_mismatch(*args, **options)

    monkeypatch.setattr(tool_result, "find_mismatch", find_mismatch)
    rows = [{"n": n} for n in range(50_000)]
    await read(structured(rows), {"type": "array", "items": OBJECT_WITH_N})
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()

    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count_turns)
        await read({"content": [{"type": "text", "text": "x"}] * 20_000}, None)
        group.cancel_scope.cancel()
    assert turns >= 30
