"""Values against JSON Schemas: what is said, what is never said, and what a check may cost.

Both come from servers: the schema as ``requestedSchema`` or ``outputSchema``, the value as a result.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_tasks_client.protocol import json_schema
from mcp_tasks_client.protocol.json_schema import (
    FORM_STEPS,
    INLINE_STEPS,
    MAX_STEPS,
    TooCostlyError,
    UnusableSchemaError,
    find_mismatch,
)

DRAFT_3 = "http://json-schema.org/draft-03/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
LATEST = "https://json-schema.org/draft/2020-12/schema"

TREE = {
    "$ref": "#/$defs/n",
    "$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}, "type": "object"}},
}


def nested(levels: int, wrap: Any, innermost: Any) -> Any:
    return reduce(lambda inner, _: wrap(inner), range(levels), innermost)


def doubling(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """A schema whose references unfold to 2 ** levels subschemas."""
    twice = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**twice, f"d{levels}": {"type": "string"}}}


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
        ([1, "a", True], {"type": "array", "uniqueItems": True, "contains": True}),
        (["a", 1], {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}),
        ({"n": 1}, {"properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}),
        (
            {"n": 1},
            {"properties": {"n": {"$ref": "#/$defs/a~1b%25/anyOf/0"}}, "$defs": {"a/b%": {"anyOf": [{}]}}},
        ),
        ({"n": {"n": {}}}, {"properties": {"n": {"$ref": "#"}}}),
        ({"next": {"next": {}}}, TREE),
        ({"x1": 1}, {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}),
        ({"n": 1}, {"if": {"required": ["n"]}, "then": {"maxProperties": 1}, "else": False}),
        ({"n": 1}, {"dependentSchemas": {"n": {"maxProperties": 1}}, "unevaluatedProperties": True}),
        ({}, {"$schema": LATEST, "$id": "https://a.example/s"}),
        ("not a mail address", {"format": "email"}),
        ("not a mail address", {"$schema": DRAFT_7, "format": "email"}),
        ("0b5f1f9a-6c2e-4f44-9a7e-0e4f3f9f8a11", {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}),
        (7, {"pattern": "^x"}),
    ],
)
def test_a_value_that_matches_has_no_mismatch(value: Any, schema: dict[str, Any]) -> None:
    assert find_mismatch(value, schema) is None


@pytest.mark.parametrize(
    ("value", "schema", "line"),
    [
        ([], {"type": "object"}, '$: the value is not of type "object"'),
        ({}, {"required": ["n"]}, '$: "n" is a required property'),
        ([{"b": 2}], {"items": {"properties": {"b": {"const": 1}}}}, "$[0].b: 1 was expected"),
        ("b", {"$ref": "#/$defs/n", "$defs": {"n": {"enum": ["a"]}}}, '$: the value is not one of "a"'),
        ("ab", {"pattern": "^b"}, "$: the value does not match the pattern ^b"),
    ],
)
def test_a_mismatch_is_one_line_that_says_where_and_what(
    value: Any, schema: dict[str, Any], line: str
) -> None:
    assert find_mismatch(value, schema) == line


@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": False},
        {"additionalProperties": {"type": "object"}},
        {"unevaluatedProperties": False},
        {"propertyNames": {"maxLength": 2}},
        {"properties": {"password": {"maxLength": 3}}},
        {"properties": {"password": {"pattern": "^[0-9]+$"}}},
        {"properties": {"password": {"enum": ["a", "b"]}}},
        {"properties": {"password": {"anyOf": [{"type": "null"}, {"maxLength": 1}]}}},
        {"properties": {"password": {"not": {"type": "string"}}}},
        {"not": {}},
        {"maxProperties": 0},
        {"type": "array"},
    ],
)
def test_a_mismatch_never_quotes_the_value(schema: dict[str, Any]) -> None:
    line = find_mismatch({"password": "hunter2"}, schema)
    assert line is not None
    assert "hunter2" not in line
    line = find_mismatch(
        {"hunter2": "x"}, {"unevaluatedProperties": False, "propertyNames": {"maxLength": 2}}
    )
    assert line is not None
    assert "hunter2" not in line


@pytest.mark.parametrize(
    "name", ["first\nsecond", "\x1b[2J", "x" * 100_000], ids=["line break", "clears a terminal", "long"]
)
def test_whatever_the_value_holds_the_line_is_printable_and_short(name: str) -> None:
    line = find_mismatch({name: 1}, {"additionalProperties": {"type": "boolean"}})
    assert line is not None
    assert len(line) < 400
    assert line.isprintable()


@pytest.mark.parametrize(
    ("dialect", "matches"),
    [(DRAFT_7, False), (DRAFT_4, False), (LATEST, True), (None, True)],
)
def test_a_schema_is_read_in_the_dialect_that_it_names_and_without_one_in_2020_12(
    dialect: str | None, matches: bool
) -> None:
    """Tuples in ``items`` became ``prefixItems`` in 2020-12, where ``items`` must not be a list."""
    schema: dict[str, Any] = {"prefixItems": [{"type": "integer"}]}
    schema = {"items": [{"type": "string"}]} if dialect in (DRAFT_7, DRAFT_4) else schema
    if dialect is not None:
        schema["$schema"] = dialect
    assert (find_mismatch([3], schema) is None) == matches


def test_value_and_schema_are_left_as_they_were() -> None:
    value, schema = {"n": [1]}, {"properties": {"n": {"default": 3, "type": "array"}, "m": {"default": 1}}}
    find_mismatch(value, schema)
    assert value == {"n": [1]}
    assert schema == {"properties": {"n": {"default": 3, "type": "array"}, "m": {"default": 1}}}


# ── what a check may cost ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_double_are_too_costly(keyword: str) -> None:
    find_mismatch("x", doubling(8, keyword))
    for levels in (22, 100):
        with pytest.raises(TooCostlyError, match="unfolds to"):
            find_mismatch("x", doubling(levels, keyword), MAX_STEPS)


@pytest.mark.parametrize(
    ("keywords", "deeper"),
    [
        (("properties", "additionalProperties"), lambda inner: {"n": inner}),
        (("patternProperties", "properties", "unevaluatedProperties"), lambda inner: {"n": inner}),
        (("items", "contains"), lambda inner: [inner]),
        (("prefixItems", "unevaluatedItems"), lambda inner: [inner]),
        (("not", "if", "then"), lambda inner: inner),
        (("dependentSchemas", "else"), lambda inner: inner),
        (("unevaluatedItems", "allOf"), lambda inner: inner),
    ],
)
def test_a_schema_that_multiplies_with_each_level_is_too_costly(
    keywords: tuple[str, ...], deeper: Any
) -> None:
    levels = 30

    def applied_by(keyword: str, sub: Any) -> Any:
        if keyword in ("allOf", "prefixItems"):
            return [sub]
        return (
            {"n": sub}
            if keyword.endswith(("roperties", "Schemas")) and keyword[:2] not in ("ad", "un")
            else sub
        )

    parts = {
        f"d{n}": {keyword: applied_by(keyword, {"$ref": f"#/$defs/d{n + 1}"}) for keyword in keywords}
        for n in range(levels)
    }
    with pytest.raises(TooCostlyError, match="unfolds to too much"):
        find_mismatch(
            nested(levels, deeper, 1), {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{levels}": {}}}, MAX_STEPS
        )


def test_a_recursive_schema_costs_as_much_as_the_value_is_deep() -> None:
    assert find_mismatch(nested(50, lambda inner: {"next": inner}, {}), TREE) is None
    assert find_mismatch(nested(50, lambda inner: {"next": inner}, {"next": 1}), TREE) is not None


def test_a_large_value_is_checked_within_the_larger_bound_and_not_within_the_smaller() -> None:
    rows = [{"name": "x", "sizes": [1, 2]}] * 20_000
    row = {"properties": {"name": {"type": "string"}, "sizes": {"items": {"type": "integer"}}}}
    schema = {"type": "array", "items": {**row, "required": ["name"]}}
    with pytest.raises(TooCostlyError):
        find_mismatch(rows, schema, INLINE_STEPS)
    assert find_mismatch(rows, schema, MAX_STEPS) is None
    with pytest.raises(TooCostlyError, match="the value holds more than"):
        find_mismatch(rows * 60, schema, MAX_STEPS)


def test_a_schema_with_hundreds_of_kilobytes_of_definitions_is_checked() -> None:
    field = {"type": "string", "description": "some words about it"}
    types = {
        f"T{n}": {"type": "object", "properties": {f"f{m}": field for m in range(3)}} for n in range(1100)
    }
    schema = {"$defs": types, "properties": {"x": {"$ref": "#/$defs/T7"}}}
    assert find_mismatch({"x": {"f0": "a"}}, schema, MAX_STEPS) is None
    assert find_mismatch({"x": {"f0": 1}}, schema, MAX_STEPS) is not None


@pytest.mark.parametrize(
    ("value", "schema", "reason"),
    [
        (nested(50_000, lambda inner: [inner], 1), {}, "the value is nested"),
        (1, nested(50_000, lambda inner: {"not": inner}, {}), "the schema is nested"),
        (1, {"enum": [*range(10_000)]}, "the schema holds more than"),
        (
            1,
            {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(240)}},
            "unfolds to more than 200 levels",
        ),
        (
            nested(120, lambda inner: {"p0": inner}, 1),
            {"properties": {f"p{n}": {"allOf": [{"$ref": "#"}]} for n in range(40)}},
            "too large for a value that is nested so deeply",
        ),
    ],
    ids=["a deep value", "a deep schema", "a large schema", "a long chain", "much to count"],
)
def test_what_is_too_deep_or_too_large_is_too_costly(value: Any, schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(TooCostlyError, match=reason):
        find_mismatch(value, schema)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a|aa)+$", "a" * 50_000 + "!"),
        (r"^(\w{1,200}\s?){1,200}$", "a" * 10_000),
        ("(x{1000}){1000}", "x"),
        ("(x{100,}){1000}", "x"),
        (r"(?=(a+))(a|aa)*z", "a" * 10_000),
        (r"^(?:(a+)+)\1$", "a" * 300 + "b"),
    ],
)
def test_a_pattern_that_could_take_long_is_too_costly_or_matched_in_linear_time(
    pattern: str, text: str
) -> None:
    """Each of them but the first takes ``re``, or the evaluator's own matching, seconds at least."""
    for schema, value in (({"pattern": pattern}, text), ({"patternProperties": {pattern: {}}}, {text: 1})):
        try:
            find_mismatch(value, schema)
        except TooCostlyError as error:
            assert "pattern" in str(error) or "unfolds" in str(error)  # noqa: PT017  # both ways are right
        except UnusableSchemaError:
            assert "patternProperties" in schema  # whose names are matched in linear time only


def test_catastrophic_patterns_are_matched_in_linear_time() -> None:
    for pattern in ("^(a+)+$", "^(a|aa)+$", "(.*)(.*)(.*)x"):
        line = find_mismatch("a" * 500 + "!", {"pattern": pattern})
        assert line == f"$: the value does not match the pattern {pattern}"


def test_many_matches_of_one_pattern_are_too_costly_together() -> None:
    schema = {"items": {"pattern": "^(a+)+$"}}
    assert find_mismatch(["a" * 1_000] * 50, schema) is None
    with pytest.raises(TooCostlyError, match="pattern"):
        find_mismatch(["a" * 1_000] * 1_000, schema)


def test_many_patterns_are_too_costly_together() -> None:
    """Some take a millisecond each to compile, whatever they are matched with."""
    several = [f"^x{n}|[^a]{{9}}" for n in range(100)]
    schema = {"allOf": [{"pattern": pattern} for pattern in several]}
    for steps in (INLINE_STEPS, FORM_STEPS):
        with pytest.raises(TooCostlyError, match="pattern"):
            find_mismatch("b" * 9, schema, steps)
    assert find_mismatch("b" * 9, schema, MAX_STEPS) is None
    with pytest.raises(TooCostlyError, match="too many patternProperties"):
        find_mismatch({}, {"patternProperties": dict.fromkeys(several, True)}, MAX_STEPS)


_DRAWN = "".join(Random(1).choices("ab", k=200_000))


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        pytest.param("x", doubling(27), id="references that double"),
        pytest.param(_DRAWN, {"pattern": "[ab]*a[ab]{500}c"}, id="one long match"),
        pytest.param(
            [_DRAWN[n : n + 500] for n in range(1_000)],
            {"items": {"pattern": "[ab]*a[ab]{100}c"}},
            id="many matches",
        ),
        pytest.param(
            "b" * 9, {"allOf": [{"pattern": f"\\p{{L}}{{9}}|{n}"} for n in range(300)]}, id="many patterns"
        ),
        pytest.param({_DRAWN: 1}, {"patternProperties": {"[ab]*a[ab]{500}c": False}}, id="a long name"),
    ],
)
def test_no_check_on_the_event_loop_holds_it_for_long(value: Any, schema: dict[str, Any]) -> None:
    """A second, since the machine may be a slow one. Without bounds each takes several."""
    for steps in (INLINE_STEPS, FORM_STEPS):
        began = perf_counter()
        with suppress(TooCostlyError):
            find_mismatch(value, schema, steps)
        assert perf_counter() - began < 1


def test_one_match_that_would_hold_the_event_loop_is_left_to_a_thread() -> None:
    schema, text = {"pattern": "^a{100}"}, "a" * 5_000
    with pytest.raises(TooCostlyError, match="pattern"):
        find_mismatch(text, schema, INLINE_STEPS)
    assert find_mismatch(text, schema, MAX_STEPS) is None


def test_what_a_failed_match_hides_is_not_taken_for_an_answer() -> None:
    """``not`` makes a match of what could not be matched."""
    pattern = {"pattern": "^(a|aa)+$"}
    for value in ("a" * 20_000 + "!", ["a" * 20_000 + "!", "a"]):
        with pytest.raises(TooCostlyError, match="pattern"):
            find_mismatch(value, {"not": pattern, "items": pattern})


def test_a_second_look_for_the_message_is_within_the_bound_as_well() -> None:
    schema = {"items": {"not": {"pattern": "^a{80}"}}}
    assert find_mismatch(["b" * 80] * 6 + ["a" * 80], schema) is not None
    with pytest.raises(TooCostlyError, match="pattern"):
        find_mismatch(["b" * 80] * 40 + ["a" * 80], schema)


def test_where_a_value_fails_is_not_searched_for_in_too_many_alternatives() -> None:
    row = {"anyOf": [{"type": "null"}, {"properties": {"n": {"type": "integer"}}, "required": ["n"]}]}
    bad = [{"n": 1}, {"n": "x"}]
    assert find_mismatch(bad, {"items": row}) == (
        "$[1]: the value is not valid under any of the schemas listed in the 'anyOf' keyword"
    )
    schema = {"anyOf": [{"type": "null"}, {"items": row}]}
    line = find_mismatch(bad * 5_000, schema, MAX_STEPS)
    assert line == "$: the value does not match, and has too many alternatives to say where"


class _Counter:
    visits = 0

    def __init__(self, _schema: Any, _value: Any, _path: Any) -> None: ...

    def validate(self, _instance: Any) -> None:
        _Counter.visits += 1


_LEAVES = st.sampled_from([{}, {"type": "integer"}, True, {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}])
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda sub: st.one_of(
        st.dictionaries(
            st.sampled_from(
                [
                    *("not", "if", "then", "else", "items", "contains", "additionalProperties"),
                    *("propertyNames", "unevaluatedProperties", "unevaluatedItems"),
                ]
            ),
            sub,
            max_size=4,
        ),
        st.dictionaries(
            st.sampled_from(["allOf", "anyOf", "oneOf", "prefixItems"]),
            st.lists(sub, min_size=1, max_size=3),
            min_size=1,
            max_size=3,
        ),
        st.dictionaries(
            st.sampled_from(["properties", "patternProperties", "dependentSchemas"]),
            st.dictionaries(st.sampled_from(["x", "y"]), sub, max_size=2),
            min_size=1,
            max_size=2,
        ),
    ),
    max_leaves=12,
)
_VALUES = st.recursive(
    st.integers(0, 3) | st.just("x"),
    lambda sub: (
        st.lists(sub, max_size=4) | st.dictionaries(st.sampled_from(["x", "y", "z"]), sub, max_size=3)
    ),
    max_leaves=12,
)


def _count_every_visit(schema: Any) -> Any:
    """``schema`` with a keyword in each subschema that counts how often it is evaluated."""
    if isinstance(schema, list):
        return [_count_every_visit(one) for one in schema]
    if not isinstance(schema, dict):
        return {"counted": True} if schema is True else schema
    counted = {
        k: {name: _count_every_visit(one) for name, one in v.items()}
        if k in ("properties", "patternProperties", "dependentSchemas", "$defs")
        else _count_every_visit(v)
        for k, v in schema.items()
    }
    return {**counted, "counted": True}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(_SCHEMAS, _SCHEMAS, _SCHEMAS, _VALUES)
def test_no_evaluation_takes_more_visits_than_were_counted_before(
    root: Any, first: Any, second: Any, value: Any
) -> None:
    import jsonschema_rs

    schema = {"allOf": [root], "$defs": {"a": first, "b": second}}
    levels = json_schema._levels(value, MAX_STEPS, "the value")
    try:
        counter = json_schema._Visits(schema, levels, MAX_STEPS)
    except (UnusableSchemaError, TooCostlyError):
        return
    _Counter.visits = 0
    validator = jsonschema_rs.validator_for(_count_every_visit(schema), keywords={"counted": _Counter})
    validator.is_valid(value)
    assert _Counter.visits <= counter.total


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


@pytest.mark.parametrize("dialect", [LATEST, DRAFT_7, DRAFT_4])
def test_nothing_outside_the_schema_is_fetched(
    hits: tuple[str, list[str]], dialect: str, tmp_path: Path
) -> None:
    url, paths = hits
    file = tmp_path / "schema.json"
    file.write_text("{}")
    for reference in (f"{url}/schema.json", "schema.json", file.as_uri()):
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            # A member that the value does not have is not looked at by us, but by the evaluator.
            for member in ("n", "absent"):
                schema = {"$schema": dialect, "$id": url, "properties": {member: {keyword: reference}}}
                if keyword == "$ref" or member == "n":
                    with pytest.raises(UnusableSchemaError):
                        find_mismatch({"n": 1}, schema)
    with pytest.raises(UnusableSchemaError):
        find_mismatch({}, {"$schema": f"{url}/schema.json", "type": "object"})
    assert paths == []


# ── unusable schemas ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"required": "n"},
        {"properties": {"n": {"minimum": "x"}}},
        {"pattern": 3},
        {"patternProperties": {"(": {}}},
        {"patternProperties": 3},
        {"properties": 3},
        {"allOf": 3},
        {"anyOf": 3},
        {"$ref": 3},
        {"$ref": ""},
        {"$ref": "#/$defs/absent"},
        {"$ref": "#absent"},
        {"$ref": "#/allOf/x", "allOf": [{}]},
        {"$ref": "#/allOf/7", "allOf": [{}]},
        {"$ref": "#/title/x", "title": "x"},
        {"$ref": LATEST},
        {"$ref": "urn:uuid:2d4a3c3e-0000-0000-0000-000000000000"},
        {"$schema": DRAFT_3, "extends": {"$ref": "#"}},
        {"$schema": 3},
        {"$schema": "https://nobody.example/draft-99"},
        {"$ref": "#/examples/0", "examples": [{"type": "nonsense"}]},
        {"allOf": [{"$id": "https://a.example/s", "$ref": "#/x"}]},
        {"$schema": DRAFT_4, "allOf": [{"id": "https://a.example/s", "$ref": "#/x"}]},
        {"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}},
        {"properties": {"\ud800": {}}},
        # Without an end:
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"unevaluatedProperties": False, "anyOf": [{"$ref": "#"}]},
    ],
)
def test_a_schema_that_says_nothing_about_values_is_unusable(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchemaError) as caught:
        find_mismatch("text", schema)
    assert str(caught.value).isprintable()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("pattern", [r"^[\w-.]+$", "^a{,3}$", "(", "^(?!b)", r"^(A)\1?"])
def test_a_pattern_that_cannot_be_read_is_passed_over_and_told(pattern: str) -> None:
    """The server, whose language reads it, validates."""
    told: list[str] = []
    schema = {"properties": {"name": {"type": "string", "pattern": pattern}, "n": {"type": "integer"}}}
    assert find_mismatch({"name": "Ada", "n": 1}, schema, pass_over=told.append) is None
    assert told == [pattern]
    assert find_mismatch({"name": "Ada", "n": "x"}, schema) == '$.n: the value is not of type "integer"'
    assert find_mismatch({"name": 1}, schema) == '$.name: the value is not of type "string"'


@pytest.mark.parametrize(
    "schema",
    [{"not": {"pattern": "("}}, {"if": {"pattern": "("}, "then": False}, {"oneOf": [{}, {"pattern": "("}]}],
)
def test_a_pattern_that_cannot_be_read_refuses_nothing_where_it_is_negated(schema: dict[str, Any]) -> None:
    assert find_mismatch("text", schema) is None


def test_a_value_that_the_evaluator_cannot_hold_is_not_quoted() -> None:
    with pytest.raises(UnusableSchemaError, match=r"^the value cannot be read \(UnicodeEncodeError\)$"):
        find_mismatch("hunter2\ud800", {"maxLength": 3})


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({}, {"$ref": "#/title", "title": "x"}),
        ({}, {"$ref": "#/default", "default": None}),
        ({}, {"$ref": "#/minimum", "minimum": 3}),
        ({}, {"$ref": "#/examples/0", "examples": [{"required": 3}]}),
        ("a", {"pattern": "a{99999999999999999999}"}),
        ("a", {"pattern": "a{99999999999999999999,}"}),
        ("a", {"pattern": "{}{,}a)"}),
        (float("inf"), {"multipleOf": 0.5}),
        (float("nan"), {"multipleOf": 0.5}),
        (10**400, {"multipleOf": 0.5}),
        pytest.param(10**5000, {"type": "integer"}, id="an integer without text"),
    ],
)
def test_whatever_the_server_sends_nothing_but_our_own_errors_comes_out(
    value: Any, schema: dict[str, Any]
) -> None:
    try:
        said = find_mismatch(value, schema)
    except (UnusableSchemaError, TooCostlyError) as error:
        assert str(error)  # noqa: PT017  # both ways out are right, a third is not
    else:
        assert said is None or said.startswith("$")
