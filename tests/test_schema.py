"""Values against JSON Schemas: one line about what is wrong, and nothing fetched, whatever the schema.

Both come from servers: the schema as ``requestedSchema`` or ``outputSchema``, the value as a result.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks_client.old.schema import UnusableSchemaError, mismatch

from ._requirements import requirement

DRAFT_3 = "http://json-schema.org/draft-03/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
LATEST = "https://json-schema.org/draft/2020-12/schema"


def nested(levels: int, wrap: Any, innermost: Any) -> Any:
    return reduce(lambda inner, _: wrap(inner), range(levels), innermost)


# ── what matches ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({}, {}),
        (None, {}),
        ({"n": 1}, {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}),
        ({"n": 1.0}, {"properties": {"n": {"type": "integer"}}}),
        ({"more": 1}, {"type": "object", "properties": {}}),
        ({"n": None}, {"properties": {"n": {"type": ["integer", "null"]}}}),
        ([1, "a", True], {"type": "array"}),
        ({"n": 1}, {"properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}),
        ({"n": {"n": {}}}, {"properties": {"n": {"$ref": "#"}}}),
        ({"n": 1}, {"$id": "https://a.example/s", "$ref": "#n", "$defs": {"n": {"$anchor": "n"}}}),
        ({"type": "object"}, {"$ref": LATEST}),
        ({}, {"$schema": LATEST}),
        ({}, {"$schema": "https://nobody.example/draft-99"}),
        ({}, {"properties": {"n": {"$ref": "https://a.example/never-looked-at"}}}),
        ("not a mail address", {"format": "email"}),
        ("\ud800", {"type": "string"}),
    ],
)
def test_a_value_that_matches_has_no_mismatch(value: Any, schema: dict[str, Any]) -> None:
    assert mismatch(value, schema) is None


@pytest.mark.parametrize(
    ("value", "schema", "line"),
    [
        ([], {"type": "object"}, "$: [] is not of type 'object'"),
        ({}, {"required": ["n"]}, "$: 'n' is a required property"),
        ({"n": "1"}, {"properties": {"n": {"type": "integer"}}}, "$.n: '1' is not of type 'integer'"),
        ({"n": True}, {"properties": {"n": {"type": "integer"}}}, "$.n: True is not of type 'integer'"),
        ([{"b": 2}], {"items": {"properties": {"b": {"const": 1}}}}, "$[0].b: 1 was expected"),
        ("b", {"$ref": "#/$defs/n", "$defs": {"n": {"enum": ["a"]}}}, "$: 'b' is not one of ['a']"),
        ("ab", {"pattern": "^b"}, "$: 'ab' does not match '^b'"),
        ({"b": 1}, {"maxProperties": 0}, "$: {'b': 1} is expected to be empty"),
        (3, {"not": {}}, "$: 3 should not be valid under {}"),
        ({}, {"$ref": LATEST, "type": "string"}, "$: {} is not of type 'string'"),
    ],
)
def test_a_mismatch_is_one_line_that_says_where_and_what(
    value: Any, schema: dict[str, Any], line: str
) -> None:
    assert mismatch(value, schema) == line


def test_of_several_mismatches_the_most_telling_one_is_told() -> None:
    schema = {
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        ]
    }
    assert mismatch({"n": "x"}, schema) == "$.n: 'x' is not of type 'integer'"


@pytest.mark.parametrize(
    "value",
    [
        {"first\nsecond": 1},
        {"a": "x" * 1_000_000},
        # A defect that was reported; strict: once it is mended, the mark has to go.
        {"\x1b[2J": 1},
    ],
    ids=["a name with a line break", "a value of a megabyte", "a name that clears a terminal"],
)
def test_whatever_the_value_holds_it_is_one_line_of_readable_length(value: dict[str, Any]) -> None:
    line = mismatch(value, {"additionalProperties": {"type": "boolean"}})
    assert line is not None
    assert len(line) < 1000
    assert line.isprintable()


@pytest.mark.parametrize(
    ("dialect", "value", "matches"),
    [
        # Tuples in items became prefixItems in 2020-12; in Draft 3 required was a boolean.
        (DRAFT_7, {"items": [{"type": "string"}]}, False),
        (DRAFT_4, {"items": [{"type": "string"}]}, False),
        (DRAFT_3, {"properties": {"n": {"required": True}}}, False),
        (LATEST, {"prefixItems": [{"type": "string"}]}, False),
        (None, {"prefixItems": [{"type": "string"}]}, False),
        (DRAFT_7, {"prefixItems": [{"type": "string"}]}, True),
    ],
)
def test_a_schema_is_read_in_the_dialect_that_it_names_and_without_one_in_2020_12(
    dialect: str | None, value: dict[str, Any], matches: bool
) -> None:
    schema = value if dialect is None else {"$schema": dialect, **value}
    wrong: Any = {} if "properties" in value else [3]
    assert (mismatch(wrong, schema) is None) == matches


# ── nothing is fetched ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def hits() -> Iterator[tuple[str, list[str]]]:
    """A server on the loopback that would gladly serve a schema, and what it was asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join(10)


@requirement("law:10")
@pytest.mark.parametrize("dialect", [None, LATEST, DRAFT_7, DRAFT_4])
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef"])
def test_a_reference_to_a_url_is_never_fetched(
    hits: tuple[str, list[str]], dialect: str | None, keyword: str
) -> None:
    url, paths = hits
    schema: dict[str, Any] = {"properties": {"n": {keyword: f"{url}/schema.json"}}}
    if dialect is not None:
        schema["$schema"] = dialect
    unknown = keyword == "$recursiveRef" or (keyword == "$dynamicRef" and dialect in (DRAFT_7, DRAFT_4))
    if unknown:  # a keyword that the dialect does not have means nothing
        assert mismatch({"n": 1}, schema) is None
    else:
        with pytest.raises(UnusableSchemaError, match=r"schema\.json"):
            mismatch({"n": 1}, schema)
    assert paths == []


@requirement("law:10")
@pytest.mark.parametrize("name", ["$schema", "$id"])
def test_neither_the_dialect_nor_the_schemas_own_address_is_fetched(
    hits: tuple[str, list[str]], name: str
) -> None:
    url, paths = hits
    assert mismatch({}, {name: f"{url}/schema.json", "type": "object"}) is None
    assert paths == []


def test_a_relative_reference_is_not_resolved_against_the_schemas_own_address(
    hits: tuple[str, list[str]],
) -> None:
    url, paths = hits
    with pytest.raises(UnusableSchemaError):
        mismatch({}, {"$id": f"{url}/a/", "$ref": "b.json"})
    assert paths == []


def test_a_reference_to_a_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text("{}")
    with pytest.raises(UnusableSchemaError):
        mismatch({}, {"$ref": path.as_uri()})


# ── unusable schemas ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": 3},
        {"required": "n"},
        {"properties": {"n": {"minimum": "x"}}},
        {"pattern": "("},
        {"patternProperties": {"(": {}}},
        {"pattern": r"\p{L}"},
        {"$ref": 3},
        {"$ref": "#/$defs/absent"},
        {"$ref": "#absent"},
        {"$ref": "http://["},
        {"$ref": "urn:uuid:2d4a3c3e-0000-0000-0000-000000000000"},
        {"$schema": DRAFT_3, "extends": {"$ref": "#"}},
    ],
)
def test_an_invalid_schema_is_unusable(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchemaError):
        mismatch("text", schema)


def test_a_pattern_that_only_a_reference_finds_is_unusable_too() -> None:
    """The check of the schema does not look into examples."""
    with pytest.raises(UnusableSchemaError):
        mismatch("text", {"$ref": "#/examples/0", "examples": [{"pattern": "("}]})


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({}, {"$ref": "#"}),
        ({}, {"$ref": ""}),
        ({}, {"allOf": [{"$ref": "#"}]}),
        ({}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        ({"a": 1}, {"unevaluatedProperties": False, "anyOf": [{"$ref": "#"}]}),
        (nested(5000, lambda inner: [inner], 1), {"items": {"$ref": "#"}}),
        (1, nested(5000, lambda inner: {"allOf": [inner]}, {})),
    ],
    ids=["itself", "empty", "in allOf", "in a circle", "unevaluated", "a deep value", "a deep schema"],
)
def test_recursion_without_an_end_is_unusable_and_not_a_crash(value: Any, schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchemaError):
        mismatch(value, schema)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        pytest.param({}, {"$schema": 3}, id="$schema is a number"),
        pytest.param({}, {"$schema": []}, id="$schema is a list"),
        pytest.param({}, {"$schema": "http://[::1"}, id="$schema is no URL"),
        pytest.param({}, {"$id": "http://a.example/", "$ref": "//["}, id="$ref is no URL"),
        pytest.param({}, {"$ref": "#/allOf/x", "allOf": [{}]}, id="a name where a list wants an index"),
        pytest.param({}, {"$ref": "#/title", "title": "x"}, id="a reference to a text"),
        pytest.param({}, {"$ref": "#/required", "required": []}, id="a reference to a list"),
        pytest.param({}, {"$ref": "#/default", "default": None}, id="a reference to null"),
        pytest.param({}, {"$ref": "#/minimum", "minimum": 3}, id="a reference to a number"),
        pytest.param(
            {}, {"$ref": "#/examples/0", "examples": [{"required": 3}]}, id="an unchecked subschema"
        ),
        pytest.param("a", {"pattern": "a{99999999999999999999}"}, id="a repetition that re overflows on"),
        pytest.param(float("inf"), {"multipleOf": 0.5}, id="infinity, which Python's json reads"),
        pytest.param(float("nan"), {"multipleOf": 0.5}, id="not a number, likewise"),
        pytest.param(10**400, {"multipleOf": 0.5}, id="an integer that no float holds"),
    ],
)
def test_whatever_the_server_sends_nothing_but_unusable_schema_error_comes_out(
    value: Any, schema: dict[str, Any]
) -> None:
    try:
        said = mismatch(value, schema)
    except UnusableSchemaError as error:
        assert str(error)  # noqa: PT017  # both ways out are right, a third is not
    else:
        assert said is None or said.startswith("$")


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "#"}, {"$ref": "#absent"}])
def test_the_library_behind_it_does_not_show(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchemaError) as caught:
        mismatch({}, schema)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert str(caught.value)


def test_value_and_schema_are_left_as_they_were() -> None:
    value, schema = {"n": [1]}, {"properties": {"n": {"default": 3, "type": "array"}, "m": {"default": 1}}}
    mismatch(value, schema)
    assert value == {"n": [1]}
    assert schema == {"properties": {"n": {"default": 3, "type": "array"}, "m": {"default": 1}}}
