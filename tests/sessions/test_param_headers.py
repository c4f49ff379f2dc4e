"""Arguments that also travel as ``Mcp-Param-*`` headers (``x-mcp-header``)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from mcp_tasks_client.protocol import MalformedError
from mcp_tasks_client.sessions.param_headers import header_map, param_headers


def marked(token: object, kind: object = "string") -> dict[str, Any]:
    return {"type": kind, "x-mcp-header": token}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_a_marked_property_is_found_by_its_path() -> None:
    nested = schema(plain={"type": "string"}, region=marked("Region"), where=schema(zone=marked("Zone")))
    assert header_map(nested) == {("region",): "Region", ("where", "zone"): "Zone"}


@pytest.mark.parametrize("schema", [None, True, [], {}, {"properties": []}, {"type": "object"}])
def test_a_schema_without_marks_has_none(schema: object) -> None:
    assert header_map(schema) == {}


@pytest.mark.parametrize("kind", ["string", "integer", "boolean"])
def test_scalars_may_be_marked(kind: str) -> None:
    assert header_map(schema(a=marked("A", kind))) == {("a",): "A"}


@pytest.mark.parametrize("kind", ["number", "object", "array", "null", ["string", "null"], None, 1])
def test_no_other_type_may_be_marked(kind: object) -> None:
    with pytest.raises(MalformedError, match="another type"):
        header_map(schema(a=marked("A", kind)))


@pytest.mark.parametrize("token", ["", "a b", "ü", "a:b", "a\n", 1, None, ["A"], {}])
def test_a_mark_must_be_a_token(token: object) -> None:
    with pytest.raises(MalformedError, match="not a token"):
        header_map(schema(a=marked(token)))


@pytest.mark.parametrize(
    "elsewhere",
    [
        marked("A"),
        {"items": marked("A")},
        {"anyOf": [marked("A")]},
        {"$defs": {"a": marked("A")}},
        {"patternProperties": {"a": marked("A")}},
        {"if": schema(a=marked("A"))},
        schema(a={"type": "array", "items": marked("A")}),
        {"prefixItems": [schema(a=marked("A"))]},
    ],
)
def test_a_mark_must_stand_where_its_argument_can_be_told(elsewhere: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match="stands where"):
        header_map(elsewhere)


@pytest.mark.parametrize("keyword", ["default", "examples", "const", "enum", "$ref"])
def test_what_only_looks_like_a_schema_is_data(keyword: str) -> None:
    assert header_map(schema(a={"type": "object", keyword: schema(b=marked("not a token"))})) == {}


def test_a_token_may_be_used_once_whatever_its_case() -> None:
    with pytest.raises(MalformedError, match="repeats"):
        header_map(schema(a=marked("Same"), b=schema(c=marked("sAME"))))


def test_a_schema_nested_deeper_than_python_can_call_is_read() -> None:
    deep: dict[str, Any] = marked("Deep")
    for _ in range(5000):
        deep = schema(a=deep)
    assert list(header_map(deep).values()) == ["Deep"]


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("eu-west", "eu-west"),
        (7, "7"),
        (True, "true"),
        (False, "false"),
        (4.5, "4.5"),
        ("", "=?base64??="),
        (" x", f"=?base64?{base64.b64encode(b' x').decode()}?="),
        ("ü\n", f"=?base64?{base64.b64encode('ü'.encode() + bytes([10])).decode()}?="),
    ],
)
def test_a_value_is_written_as_the_server_will_compare_it(value: object, header: str) -> None:
    assert param_headers({("a",): "Token"}, {"a": value}) == {"Mcp-Param-Token": header}


@pytest.mark.parametrize("arguments", [{}, {"a": None}, {"a": {"b": None}}, {"a": 1}, {"a": {"b": [1]}}])
def test_what_is_absent_or_has_no_form_gets_no_header(arguments: dict[str, Any]) -> None:
    assert param_headers({("a", "b"): "Token"}, arguments) == {}


def test_a_nested_argument_is_found() -> None:
    assert param_headers({("a", "b"): "Token"}, {"a": {"b": 1}}) == {"Mcp-Param-Token": "1"}


def test_a_text_without_utf_8_form_is_refused() -> None:
    with pytest.raises(MalformedError, match="UTF-8"):
        param_headers({("a",): "Token"}, {"a": "\ud800"})
