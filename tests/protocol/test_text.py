"""Foreign text made safe: for messages, for HTTP headers, for keys."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tasks_client.protocol import MalformedError
from mcp_tasks_client.protocol.text import digest, header_value, name_tool, quote, redact, shorten

TASK_ID = "hfWcnM9nILV_1MI9AytuHXEJLNNwF6lE8HXmpazeV2c"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


# ── quotes ────────────────────────────────────────────────────────────────────────────────────


@given(st.text())
@example("\x1b[2Jfirst\nsecond\x00")
@example("x" * 5_000_000)
@example("\n" * 5_000)
@example(f"{TASK_ID} " * 5_000)
def test_foreign_text_is_quoted_in_one_short_printable_line_without_the_task_id(text: str) -> None:
    line = quote(text, TASK_ID)
    assert line == "" or line.isprintable()
    assert len(line) <= 301
    assert TASK_ID not in line


def test_short_text_is_quoted_as_it_is_and_a_cut_is_shown() -> None:
    assert quote("Task is gone.") == "Task is gone."
    assert quote("x" * 300) == "x" * 300
    assert quote("x" * 301) == "x" * 300 + "…"


# ── headers ───────────────────────────────────────────────────────────────────────────────────


def received(field: str) -> str:
    """What a server makes of a header: the sentinel is decoded, everything else is literal."""
    trimmed = field.strip(" \t")
    sentinel = re.fullmatch(r"=\?base64\?(.*)\?=", trimmed, re.DOTALL)
    return base64.b64decode(sentinel[1], validate=True).decode() if sentinel else trimmed


ENCODABLE = st.text(st.characters(exclude_categories=["Cs"]))


@given(ENCODABLE | ENCODABLE.map(lambda text: f"=?base64?{text}?="))
@example("")
@example(" ")
@example("=?base64??=")
@example("=?base64?a\n?=")
@example("tab\tinside")
@example("\x7f")
@example("wörter")
def test_every_text_survives_the_way_through_a_header(text: str) -> None:
    field = header_value(text)
    assert re.fullmatch(r"[\x20-\x7e]+", field)
    assert received(field) == text


@pytest.mark.parametrize(
    "text", ["a", "get_weather", TASK_ID, "two words", "=?base64?", "?=", "=?utf-8?q?x?="]
)
def test_what_a_header_can_carry_goes_as_it_is(text: str) -> None:
    assert header_value(text) == text


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "=?base64??="),
        (" a", "=?base64?IGE=?="),
        ("a ", "=?base64?YSA=?="),
        ("a\r\nX-Evil: 1", "=?base64?YQ0KWC1FdmlsOiAx?="),
        ("é", "=?base64?w6k=?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
    ],
)
def test_what_a_header_cannot_carry_goes_as_base64(text: str, field: str) -> None:
    assert header_value(text) == field


def test_half_a_surrogate_pair_fits_into_no_header_and_the_message_is_printable() -> None:
    with pytest.raises(MalformedError, match="no UTF-8 form") as raised:
        header_value("\ud800" * 30)
    assert str(raised.value).isascii()


def test_a_tool_whose_name_is_not_known_is_not_called_none() -> None:
    assert (name_tool("deploy"), name_tool(None)) == ("'deploy'", "an unknown tool")


# ── secrets and digests ───────────────────────────────────────────────────────────────────────


@given(st.text())
@example("")
@example("ab")
@example(TASK_ID)
def test_a_shortened_id_shows_no_more_than_a_third_and_no_more_than_eight_characters(text: str) -> None:
    shown = shorten(text).removesuffix("…")
    assert "".join(text.split()).startswith("".join(shown.split())) or not text.isprintable()
    assert len(shown) <= min(8, len(text) / 3)


@given(st.text())
@example("\x1b[2J\n\u202e" + TASK_ID)
def test_a_shortened_id_is_one_printable_line(text: str) -> None:
    assert shorten(text).isprintable()


def test_a_long_id_can_still_be_recognised() -> None:
    assert shorten(TASK_ID) == "hfWcnM9n…"
    assert shorten("task-1234") == "tas…"


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(JSON)
def test_a_digest_is_the_same_in_whatever_order_the_keys_come(value: object) -> None:
    assert digest(reordered(value)) == digest(value)


@given(JSON)
def test_a_digest_is_the_same_after_a_way_over_the_wire(value: object) -> None:
    assert digest(json.loads(json.dumps(value))) == digest(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 2}),
        ([1, 2], [2, 1]),
        ({"a": "1"}, {"a": 1}),
        ({"a": None}, {}),
        ("é", "e"),
        (1, True),
        (1.0, True),
        (0, False),
        (1, 1.5),
        ("1.0", "1"),
    ],
)
def test_a_digest_differs_for_different_json(one: object, other: object) -> None:
    assert digest(one) != digest(other)


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (0, -0.0), (10**22, 1e22), (-7, -7.0)])
def test_numbers_that_are_equal_as_json_have_one_digest(one: float, other: float) -> None:
    assert digest({"a": [one, "v1.0"]}) == digest({"a": [other, "v1.0"]})


def test_a_digest_is_the_sha_256_of_compact_sorted_json() -> None:
    # Of {"a":[1,"\u00e9"],"b":null}; stored in journals, so it must never change.
    expected = "e6ad993c7a569e941cdd65aa57c817cb74d20d9877b15dfc8cc0ac151c74785d"
    assert digest({"b": None, "a": [1, "é"]}) == expected


def test_what_has_no_json_form_has_no_digest() -> None:
    with pytest.raises(TypeError):
        digest({"a": object()})


def test_a_servers_words_are_quoted_without_the_task_id() -> None:
    assert redact(f"Task {TASK_ID} broke", TASK_ID) == f"Task {shorten(TASK_ID)} broke"
    assert redact("Nothing broke", None) == "Nothing broke"
