"""Forms: a server's schema as fields, what is typed as values, and a URL that somebody is asked to visit."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp_types import ElicitRequestFormParams

from mcp_tasks_client.errors import FormError
from mcp_tasks_client.forms import Choice, Field, Form, Visit, read_form, read_pairs, read_url

from ._requirements import requirement

COLOURS = ["red", "green", "blue"]
TITLED = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
NULL = {"type": "null"}

DRAWN: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "short text": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^a+$"},
    "empty text": {"type": "string", "default": ""},
    "e-mail": {"type": "string", "format": "email"},
    "uri": {"type": "string", "format": "uri"},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "integer": {"type": "integer"},
    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "number": {"type": "number"},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "boolean": {"type": "boolean"},
    "enum": {"type": "string", "enum": COLOURS},
    "enumNames": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]},
    "titled": {"type": "string", "oneOf": TITLED},
    "odd enum": {"enum": ["", " a", "b,c", "[1]", "1", 1, 2.5, True, None, "a\nb"]},
    "several": {"type": "array", "items": {"type": "string", "enum": COLOURS}},
    "some": {"type": "array", "items": {"enum": COLOURS}, "minItems": 1, "maxItems": 2, "uniqueItems": True},
    "several titled": {"type": "array", "items": {"anyOf": TITLED}},
    "several odd": {"type": "array", "items": {"enum": ["a", " a", "b,c", "[1]", "1", 1, None]}},
    "nullable": {"anyOf": [{"type": "integer"}, NULL]},
    "nullable type": {"type": ["string", "null"]},
    "object": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "texts": {"type": "array", "items": {"type": "string"}},
    "anything": {},
}
"""A schema of each kind that a field is drawn for."""

drawn = pytest.mark.parametrize("name", DRAWN)


def params_of(requested: dict[str, Any]) -> ElicitRequestFormParams:
    return ElicitRequestFormParams(message="?", requested_schema=requested)


def form_of(required: tuple[str, ...] = (), /, **properties: Any) -> Form:
    return read_form(params_of({"type": "object", "properties": properties, "required": [*required]}))


def field_of(described: Any, *, required: bool = True) -> Field:
    (field,) = form_of(("it",) if required else (), it=described).fields
    return field


def attempt(read: Callable[[], Any]) -> Any:
    """What reading gives: a value, or the error, whose message is fit for a terminal."""
    try:
        return read()
    except FormError as error:
        refused = error
    assert str(refused).isprintable()
    assert len(str(refused)) < 1_000
    return refused


def refusal(field: Field, text: str) -> str:
    with pytest.raises(FormError) as caught:
        field.read(text)
    assert caught.value.field == field.name
    return str(caught.value)


# ── what a field says of itself ───────────────────────────────────────────────────────────────────


def test_a_field_shows_what_the_server_says_of_it() -> None:
    described = {"type": "string", "title": "Your name", "description": "As on the card", "default": "Ada"}
    form = form_of(("name",), name=described, age={"type": "integer", "title": " "})
    name, age = form.fields
    assert (name.name, name.title, name.description) == ("name", "Your name", "As on the card")
    assert (name.kind, name.format, name.choices, name.default) == ("text", None, (), "Ada")
    assert name.required
    assert name.schema == described
    assert (age.title, age.description, age.default, age.required) == ("age", None, None, False)


@pytest.mark.parametrize(
    ("described", "kind", "hint"),
    [
        ({"type": "string"}, "text", "a text"),
        ({"type": "string", "minLength": 2, "maxLength": 5}, "text", "a text of 2 to 5 characters"),
        ({"type": "string", "minLength": 3, "maxLength": 3}, "text", "a text of exactly 3 characters"),
        ({"type": "string", "format": "email"}, "text", "an e-mail address, such as ada@example.com"),
        ({"type": "string", "format": "hostname"}, "text", "a text"),
        ({"type": "integer", "minimum": 1}, "integer", "a whole number, at least 1"),
        ({"type": "number", "maximum": 0.5}, "number", "a number, at most 0.5"),
        ({"type": "number"}, "number", "a number"),
        ({"type": "boolean"}, "boolean", "yes or no"),
        ({"enum": COLOURS}, "choice", "one of them, by its number or value"),
        ({"enum": ["1", "2"]}, "choice", "one of them, by its value"),
        ({"type": "array", "items": {"enum": COLOURS}}, "choices", "any of them, separated by commas"),
        (
            {"type": "array", "items": {"enum": COLOURS}, "minItems": 1, "maxItems": 2},
            "choices",
            "1 to 2 of them, separated by commas",
        ),
        ({"type": "object"}, "json", 'JSON, such as "text", 3 or {"name": "value"}'),
    ],
)
def test_a_hint_says_what_fits(described: dict[str, Any], kind: str, hint: str) -> None:
    field = field_of(described)
    assert (field.kind, field.hint) == (kind, hint)


@pytest.mark.parametrize(
    ("described", "choices"),
    [
        ({"enum": COLOURS}, [Choice(one, one) for one in COLOURS]),
        ({"enum": ["r", "g"], "enumNames": ["Red", ""]}, [Choice("r", "Red"), Choice("g", "g")]),
        ({"enum": ["r", "g"], "enumNames": ["Red"]}, [Choice("r", "r"), Choice("g", "g")]),
        ({"type": "string", "oneOf": TITLED}, [Choice("r", "Red"), Choice("g", "Green")]),
        ({"type": "array", "items": {"anyOf": TITLED}}, [Choice("r", "Red"), Choice("g", "Green")]),
        ({"const": "yes", "type": "string"}, [Choice("yes", "yes")]),
        ({"enum": [1, None]}, [Choice(1, "1"), Choice(None, "null")]),
    ],
)
def test_the_choices_have_values_and_titles(described: dict[str, Any], choices: list[Choice]) -> None:
    assert list(field_of(described).choices) == choices


@pytest.mark.parametrize(
    "described",
    [
        {"enum": []},
        {"enum": ["a", {"b": 1}]},
        {"enum": ['"1"', 1, "1"]},  # no text names the last one
        {"oneOf": [{"const": "a"}, {"type": "string"}]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"anyOf": [{"type": "string"}]},
        {"anyOf": [True, NULL]},
        {"type": ["string", "integer"]},
        {"type": ["string", "integer", "null"]},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": True},
        {"type": "object"},
        {"type": "null"},
        {"$ref": "#/properties/it"},
        {},
        True,
        False,
    ],
)
def test_what_no_other_kind_stands_for_is_a_field_of_json(described: Any) -> None:
    (field,) = form_of(it=described).fields
    assert (field.kind, field.choices) == ("json", ())
    assert field.schema == described


def test_a_reference_and_null_beside_one_type_are_looked_through() -> None:
    schema = {
        "type": "object",
        "$defs": {"Colour": {"enum": COLOURS, "title": "Colour"}, "Any": True},
        "properties": {
            "a": {"$ref": "#/$defs/Colour", "title": "Paint"},
            "b": {"anyOf": [{"$ref": "#/$defs/Colour"}, NULL], "default": None},
            "c": {"type": ["integer", "null"]},
            "d": {"$ref": "#/$defs/Any"},
        },
        "required": ["a", "b", "c"],
    }
    form = read_form(params_of(schema))
    assert [(one.title, one.kind) for one in form.fields] == [
        ("Paint", "choice"),
        ("Colour", "choice"),
        ("c", "integer"),
        ("d", "json"),
    ]
    assert form.read({"a": "red", "b": "", "c": "", "d": ""}) == {"a": "red", "b": None, "c": None}


# ── from texts to values ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("described", "text", "value"),
    [
        ({"type": "string"}, " Ada ", " Ada "),
        ({"type": "string"}, "decline", "decline"),
        ({"type": "string"}, " ", " "),
        ({"type": "string", "format": "email"}, " ada@example.com ", "ada@example.com"),
        ({"type": "string", "format": "uri"}, "urn:isbn:1", "urn:isbn:1"),
        ({"type": "string", "format": "date"}, "2028-02-29", "2028-02-29"),
        ({"type": "string", "format": "date-time"}, "2026-11-28T14:30:00Z", "2026-11-28T14:30:00Z"),
        (
            {"type": "string", "format": "date-time"},
            "2026-11-28t14:30:00.5+02:00",
            "2026-11-28t14:30:00.5+02:00",
        ),
        ({"type": "string", "format": "ipv4"}, "anything", "anything"),
        ({"type": "integer"}, " +7 ", 7),
        ({"type": "integer"}, "-0", 0),
        ({"type": "number"}, "7", 7),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, " .5", 0.5),
        ({"type": "boolean"}, "Y", True),
        ({"type": "boolean"}, " off ", False),
        ({"enum": COLOURS}, "2", "green"),
        ({"enum": COLOURS}, " green ", "green"),
        ({"enum": COLOURS}, "GREEN", "green"),
        ({"enum": ["a", "A"]}, "A", "A"),
        ({"type": "string", "oneOf": TITLED}, "red", "r"),
        ({"enum": ["3", "1"]}, "1", "1"),
        ({"enum": [True, 1]}, "1", 1),
        ({"enum": ["", "x"]}, "1", ""),
        ({"enum": ["", "x"]}, '""', ""),
        ({"type": "array", "items": {"enum": COLOURS}}, "2, red, green,", ["green", "red"]),
        ({"type": "array", "items": {"enum": COLOURS}}, '["red"]', ["red"]),
        ({"type": "array", "items": {"enum": [1, True]}}, "[1.0, true]", [1, True]),
        ({"type": "array", "items": {"enum": COLOURS}}, "", []),
        ({"type": "object"}, '{"a": [1, 2.5]}', {"a": [1, 2.5]}),
        ({}, "null", None),
        ({"type": "string", "default": ""}, "", ""),
    ],
)
def test_a_text_is_read_as_a_value(described: dict[str, Any], text: str, value: Any) -> None:
    assert json.dumps(field_of(described).read(text)) == json.dumps(value)


@pytest.mark.parametrize(
    ("described", "text", "problem"),
    [
        ({"type": "string"}, "", "a value is needed"),
        ({"type": "string", "default": "", "minLength": 1}, "", "a value is needed"),
        ({"type": "string"}, "\ud800", "half of a character"),
        ({"type": "string", "maxLength": 2}, "Ada", "longer than 2 characters"),
        ({"type": "string", "pattern": "^a+$"}, "b", "does not match the pattern"),
        ({"type": "string", "format": "email"}, "ada", "another form"),
        ({"type": "string", "format": "email"}, " ", "a value is needed"),
        ({"type": "string", "format": "uri"}, "example.com", "another form"),
        ({"type": "string", "format": "date"}, "20261128", "another form"),
        ({"type": "string", "format": "date"}, "2026-02-30", "another form"),
        ({"type": "string", "format": "date-time"}, "2026-11-28T14:30:00", "another form"),
        ({"type": "string", "format": "date-time"}, "2026-11-28T25:30:00Z", "another form"),
        ({"type": "integer"}, "three", "no whole number"),
        ({"type": "integer"}, "3.0", "no whole number"),
        ({"type": "integer"}, "٣", "no whole number"),
        ({"type": "integer"}, "9" * 5_000, "no whole number"),
        ({"type": "integer", "minimum": 1}, "0", "less than the minimum of 1"),
        ({"type": "number"}, "1,5", "no number"),
        ({"type": "number"}, "nan", "no number"),
        ({"type": "number"}, "1e999", "no number"),
        ({"type": "boolean"}, "perhaps", "neither yes nor no"),
        ({"enum": COLOURS}, "4", "none of the choices"),
        ({"enum": COLOURS}, "0", "none of the choices"),
        ({"enum": ["3", "1"]}, "2", "none of the choices"),
        ({"enum": ["a", "b"], "enumNames": ["One", "One"]}, "One", "none of the choices"),
        (
            {"type": "array", "items": {"enum": COLOURS}},
            "red, pink",
            "number 2 of them is none of the choices",
        ),
        (
            {"type": "array", "items": {"enum": COLOURS}},
            '["pink"]',
            "number 1 of them is none of the choices",
        ),
        ({"type": "array", "items": {"enum": COLOURS}, "minItems": 1}, "", "a value is needed"),
        ({"type": "array", "items": {"enum": COLOURS}, "maxItems": 1}, "1,2", "more than 1 item"),
        ({"type": "object"}, "{", "this is no JSON: Expecting property name enclosed in double quotes at"),
        ({"type": "object"}, "[]", 'not of type "object"'),
        ({}, "NaN", "NaN is no number in JSON"),
        ({}, "1e999", "a number is too large"),
        ({}, "9" * 5_000, "a number is too large"),
        ({}, '"\\ud800"', "half of a character"),
        ({}, "[" * 100_000, "nested too deeply"),
        ({"type": "string", "pattern": "(a|b){500}"}, "a" * 2_000, "the server's schema cannot be used"),
    ],
)
def test_what_does_not_fit_is_refused_by_a_sentence(
    described: dict[str, Any], text: str, problem: str
) -> None:
    field = field_of(described)
    said = refusal(field, text)
    assert said.startswith("it: ")
    assert problem in said
    assert said.endswith(f"Needed: {field.hint}.")


def test_a_problem_inside_of_json_says_where() -> None:
    said = refusal(field_of(DRAWN["object"]), '{"a": "x"}')
    assert said.startswith('it: .a: the value is not of type "integer"')


def test_a_name_that_is_long_and_hostile_hides_no_problem() -> None:
    name = "\x1b[2J" + "n" * 5_000
    (field,) = form_of((), **{name: {"type": "integer"}}).fields
    said = refusal(field, "x")
    assert said.isprintable()
    assert "no whole number" in said
    (field,) = form_of((), **{name: {"type": "integer", "minimum": 3}}).fields
    assert "less than the minimum of 3" in refusal(field, "2")


@pytest.mark.parametrize("kind", [name for name in DRAWN if name != "anything"])
def test_an_empty_text_leaves_an_optional_field_out(kind: str) -> None:
    field = field_of(DRAWN[kind], required=False)
    assert field.leaves_out("")
    assert field.read("") is None
    assert form_of(it=DRAWN[kind]).read({"it": ""}) == {}
    assert not field_of(DRAWN[kind]).leaves_out("")


def test_blanks_are_a_text_and_no_number() -> None:
    assert not field_of({"type": "string"}, required=False).leaves_out(" ")
    assert field_of({"type": "integer"}, required=False).leaves_out(" ")


# ── defaults, and from values to texts ────────────────────────────────────────────────────────────


@requirement("elicit:defaults")
@pytest.mark.parametrize(
    ("described", "default"),
    [
        ({"type": "string", "default": "Ada"}, "Ada"),
        ({"type": "integer", "default": 8080}, "8080"),
        ({"type": "integer", "default": 3.0}, "3"),
        ({"type": "number", "default": 2.5}, "2.5"),
        ({"type": "boolean", "default": False}, "no"),
        ({"type": "boolean", "default": True}, "yes"),
        ({"enum": COLOURS, "default": "green"}, "green"),
        ({"type": "array", "items": {"anyOf": TITLED}, "default": ["g", "r"]}, "g, r"),
        ({"type": "object", "default": {"a": "é"}}, '{"a": "é"}'),
        ({"type": "integer", "minimum": 5, "default": 1}, "1"),
        ({"type": "string", "default": None}, None),
        ({"type": "string", "default": 5}, None),
        ({"type": "integer", "default": 2.5}, None),
        ({"type": "number", "default": True}, None),
        ({"type": "boolean", "default": "yes"}, None),
        ({"enum": COLOURS, "default": "pink"}, None),
        ({"enum": COLOURS, "default": ["red"]}, None),
        ({"type": "array", "items": {"enum": COLOURS}, "default": "red"}, None),
        ({"type": "array", "items": {"enum": COLOURS}, "default": ["pink"]}, None),
    ],
)
def test_a_default_is_a_text_to_begin_with(described: dict[str, Any], default: str | None) -> None:
    assert field_of(described).default == default


@pytest.mark.parametrize(
    "value",
    [object(), float("nan"), float("inf"), 10**5_000, "\ud800", {1}],
    ids=["object", "nan", "infinity", "too many digits", "surrogate", "set"],
)
@pytest.mark.parametrize(
    "described", [{"type": "number"}, {"type": "string"}, {}], ids=["number", "text", "json"]
)
def test_what_is_no_json_has_no_text(described: dict[str, Any], value: Any) -> None:
    with pytest.raises(FormError, match="another kind"):
        field_of(described).show(value)


@pytest.mark.parametrize(
    ("described", "value", "text"),
    [
        ({"enum": ["", "x"]}, "", "1"),
        ({"enum": ["", "1"]}, "", '""'),
        ({"enum": [1, "1"]}, "1", '"1"'),
        ({"enum": [True, 1.0]}, 1, "1.0"),
        ({"enum": [None, 1]}, None, "null"),
        ({"type": "string"}, None, ""),
        ({}, None, "null"),
        ({"type": "array", "items": {"enum": ["a,b", "c"]}}, ["a,b", "c"], '["a,b", "c"]'),
        ({"type": "array", "items": {"enum": COLOURS}}, ["red", "red"], '["red", "red"]'),
        ({"type": "array", "items": {"enum": COLOURS}}, [], ""),
    ],
)
def test_a_value_is_shown_as_the_text_that_names_it(described: dict[str, Any], value: Any, text: str) -> None:
    field = field_of(described)
    assert field.show(value) == text
    assert text == "" or json.dumps(field.read(text)) == json.dumps(value).replace("1", "1.0", text == "1.0")


def test_none_of_several_is_shown_as_a_list_where_the_field_may_be_left_out() -> None:
    field = field_of({"type": "array", "items": {"enum": COLOURS}}, required=False)
    assert field.show([]) == "[]"
    assert field.read("[]") == []


# ── whole forms ───────────────────────────────────────────────────────────────────────────────────


def test_a_form_makes_the_content_of_its_texts_and_shows_it_again() -> None:
    form = form_of(("name", "tags"), name={"type": "string"}, tags=DRAWN["some"], age={"type": "integer"})
    content = form.read({"name": "Ada", "tags": "1,3", "age": ""})
    assert content == {"name": "Ada", "tags": ["red", "blue"]}
    assert form.show(content) == {"name": "Ada", "tags": "red, blue", "age": ""}
    assert form.read(form.show(content)) == content


def test_a_form_says_which_field_is_wrong() -> None:
    form = form_of(("name",), name={"type": "string"}, age={"type": "integer"})
    with pytest.raises(FormError) as caught:
        form.read({"name": "Ada", "age": "old"})
    assert caught.value.field == "age"
    with pytest.raises(FormError, match='"name" is a required property') as caught:
        form.read({"age": "3"})
    assert caught.value.field is None
    with pytest.raises(FormError, match="no field 'size'"):
        form.show({"size": 3})


def test_a_required_field_without_a_text_has_its_default() -> None:
    form = form_of(("size",), size={"type": "string", "default": "L"}, hat={"type": "string", "default": "M"})
    assert form.read({}) == {"size": "L"}


def test_rules_over_several_fields_are_checked_at_the_end() -> None:
    schema = {
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "dependentRequired": {"a": ["b"]},
    }
    form = read_form(params_of(schema))
    assert [one.kind for one in form.fields] == ["text", "text"]
    with pytest.raises(FormError, match="required"):
        form.read({"a": "x", "b": ""})


def test_a_form_without_fields_asks_for_a_yes_alone() -> None:
    form = form_of()
    assert form.fields == ()
    assert form.read({}) == {}


def test_a_required_name_that_is_not_described_has_a_field() -> None:
    form = read_form(params_of({"type": "object", "required": ["a"]}))
    assert [(one.name, one.kind, one.required) for one in form.fields] == [("a", "json", True)]
    assert form.read({"a": '"x"'}) == {"a": "x"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}]},
        {"$ref": "#/$defs/it", "$defs": {"it": {"properties": {"a": {"type": "integer"}}}}},
        {"type": ["object"], "properties": {"a": {"type": "integer"}}},
        {"patternProperties": {"^a$": {"type": "integer"}}},
    ],
)
def test_a_schema_that_is_more_than_properties_is_answered_by_json(schema: dict[str, Any]) -> None:
    form = read_form(params_of(schema))
    (field,) = form.fields
    assert (field.name, field.kind, field.schema) == ("", "json", schema)
    assert form.read({"": '{"a": 1}'}) == {"a": 1}
    assert form.show({"a": 1}) == {"": '{"a": 1}'}
    with pytest.raises(FormError, match="content does not match the form"):
        form.read({"": '{"a": "x"}'})
    with pytest.raises(FormError, match=r"the answer: .*JSON object"):
        form.read({"": "[]"})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 3},
        {"required": "a"},
        {"properties": {"a": {"type": "x"}}},
        {"$ref": "http://127.0.0.1/"},
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_before_anybody_types(schema: dict[str, Any]) -> None:
    with pytest.raises(FormError, match="The form cannot be answered: the server's requestedSchema"):
        read_form(params_of(schema))


def test_a_content_that_costs_too_much_to_check_is_refused() -> None:
    form = form_of(it={})
    with pytest.raises(FormError, match="cannot be used: the value holds more than"):
        form.check({"it": [0] * 500_000})


# ── pairs, as a command line has them ─────────────────────────────────────────────────────────────

TOOL = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"anyOf": [{"type": "number"}, NULL]},
        "dry": {"type": "boolean"},
        "colour": {"enum": COLOURS},
        "level": {"enum": [1, 2, "3"]},
        "tags": {"type": "array", "items": {"enum": COLOURS}},
        "options": {"type": "object"},
        "id": {"type": ["string", "integer"]},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "odd": {"anyOf": [{"type": "integer"}, True]},
        "gone": {"$ref": "#/$defs/gone"},
        "any": {},
    },
}


@pytest.mark.parametrize(
    ("pair", "members"),
    [
        ("name=Ada", {"name": "Ada"}),
        ("name=7", {"name": "7"}),
        ("name=", {"name": ""}),
        ("name==a=b", {"name": "=a=b"}),
        ("count=7", {"count": 7}),
        ("share=0.5", {"share": 0.5}),
        ("share:=null", {"share": None}),
        ("dry=true", {"dry": True}),
        ("dry=no", {"dry": False}),
        ("colour=2", {"colour": "2"}),
        ("level=2", {"level": 2}),
        ("level=3", {"level": "3"}),
        ("level=9", {"level": "9"}),
        ('tags:=["red"]', {"tags": ["red"]}),
        ("options:={}", {"options": {}}),
        ("id=7", {"id": "7"}),
        ("either=7", {"either": "7"}),
        ("odd=x", {"odd": "x"}),
        ("any=7", {"any": "7"}),
        ("gone=7", {"gone": "7"}),
        ("other=true", {"other": "true"}),
        ("url:port=1", {"url:port": "1"}),
        ("name:=7", {"name": 7}),
    ],
)
def test_a_pair_is_a_text_unless_the_schema_or_the_pair_says_otherwise(
    pair: str, members: dict[str, Any]
) -> None:
    assert json.dumps(read_pairs([pair], TOOL)) == json.dumps(members)


@pytest.mark.parametrize(
    ("pairs", "problem", "field"),
    [
        (["name"], "'name' has no value. Write name=text or name:=json.", None),
        (["=x"], "has no value", None),
        ([":=1"], "has no value", None),
        (["name:"], "has no value", None),
        (["count=many"], "count: a whole number is needed. JSON is given as count:=json.", "count"),
        (["dry=2"], "dry: yes or no is needed", "dry"),
        (["tags=red"], "tags: JSON is needed", "tags"),
        (["options=x"], "options: JSON is needed", "options"),
        (["limit=x"], "limit: JSON is needed", "limit"),
        (["name=a", "name:=1"], "name is given twice", "name"),
        (["name:={"], "name: this is no JSON", "name"),
        (["name=\udcff"], "half of a character", "name"),
    ],
)
def test_a_pair_that_says_nothing_clear_is_refused(pairs: list[str], problem: str, field: str | None) -> None:
    with pytest.raises(FormError) as caught:
        read_pairs(pairs, TOOL)
    assert problem in str(caught.value)
    assert caught.value.field == field


@pytest.mark.parametrize("schema", [{}, {"properties": None}, {"properties": {"a": True}}])
def test_a_schema_that_says_nothing_leaves_texts_as_they_are(schema: dict[str, Any]) -> None:
    assert read_pairs(["a=1", "b:=1"], schema) == {"a": "1", "b": 1}


def test_pairs_fill_in_a_form() -> None:
    form = form_of(
        ("port",), port={"type": "integer", "maximum": 10}, size={"type": "string", "default": "L"}
    )
    schema = form._params.requested_schema
    assert form.check(read_pairs(["port=8"], schema)) == {"port": 8}
    with pytest.raises(FormError, match=r"\$\.port: .*maximum of 10"):
        form.check(read_pairs(["port=80"], schema))


# ── a URL to visit ────────────────────────────────────────────────────────────────────────────────


@requirement("elicit:suspicious-url")
@pytest.mark.parametrize(
    ("url", "host", "warned"),
    [
        ("https://pay.example/a?b=c#d", "pay.example", []),
        ("HTTPS://Pay.Example:8443/", "pay.example", []),
        ("https://[::1]/", "::1", []),
        ("http://pay.example/", "pay.example", ["not encrypted"]),
        ("https://bank.example@evil.example/", "evil.example", ["before an @"]),
        ("https://bank.example:x@evil.example/", "evil.example", ["before an @"]),
        ("https://bank.example/@x", "bank.example", []),
        ("https://xn--bnk-iqa.example/", "xn--bnk-iqa.example", ["Punycode"]),
        ("https://bånk.example/", "bånk.example", ["In ASCII it is xn--bnk-ula.example"]),
        ("https://\uff42ank.example/", "\uff42ank.example", ["In ASCII it is bank.example"]),
        ("https://b\u0308.." + "é/", "b\u0308..é", ["may look like others"]),
        (
            "http://a@é.xn--a/",
            "é.xn--a",
            ["not encrypted", "before an @", "may look like others", "Punycode"],
        ),
    ],
)
def test_a_url_is_shown_whole_with_its_host_and_what_to_be_wary_of(
    url: str, host: str, warned: list[str]
) -> None:
    visit = read_url(url)
    assert isinstance(visit, Visit)
    assert (visit.url, visit.host) == (url, host)
    assert len(visit.warnings) == len(warned)
    for warning, part in zip(visit.warnings, warned, strict=True):
        assert part in warning


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("file:///etc/passwd", "another scheme than http or https: file."),
        ("javascript:alert(1)", "another scheme than http or https: javascript."),
        ("example.com", "another scheme than http or https: none."),
        ("", "another scheme"),
        ("https:evil.example", "without a plain host"),
        ("https:///evil.example/", "without a plain host"),
        ("https://user@/", "without a plain host"),
        ("https://%65vil.example/", "without a plain host"),
        ("https://evil.example\\@bank.example/", "blanks, backslashes"),
        ("https://evil.example\n.bank.example/", "blanks, backslashes"),
        (" https://bank.example/", "blanks, backslashes"),
        ("https://bank.example/\u202e", "blanks, backslashes"),
        ("https://evil.example\uff1a80/", "no URL"),
        ("https://[::1/", "no URL"),
        ("https://bank.example:port/", "no URL"),
        ("https://bank.example/" + "x" * 10_000, "more than 8192 characters"),
    ],
)
def test_a_url_that_programs_read_in_two_ways_or_that_is_no_page_is_refused(url: str, problem: str) -> None:
    with pytest.raises(FormError) as caught:
        read_url(url)
    assert problem in str(caught.value)
    assert str(caught.value).isprintable()


# ── for any text ──────────────────────────────────────────────────────────────────────────────────

TYPED = (
    st.text(max_size=12)
    | st.sampled_from(
        ["1", "2,3", "yes", "red", "Green", "[]", "{}", "null", "a@b", "2026-11-28", "u:x", "-1.5"]
    )
    | st.integers().map(str)
    | st.floats().map(str)
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=5,
)
ENCODABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@requirement("elicit:validate")
@given(st.sampled_from(list(DRAWN)), TYPED, st.booleans())
@example("several odd", "[1]", True)
@example("odd enum", "\0", False)
def test_a_typed_text_gives_content_that_the_schema_takes_or_a_sentence(
    name: str, text: str, required: bool
) -> None:
    schema = {"type": "object", "properties": {"it": DRAWN[name]}, "required": ["it"] if required else []}
    form = read_form(params_of(schema))
    content = attempt(lambda: form.read({"it": text}))
    if isinstance(content, FormError):
        return
    jsonschema.Draft202012Validator(schema).validate(content)
    if "it" in content:
        field = form.fields[0]
        assert json.dumps(field.read(field.show(content["it"]))) == json.dumps(content["it"])


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": ENCODABLE.filter(bool),
    "short text": st.text("ab\n ", min_size=2, max_size=5),
    "date": st.dates().map(str),
    "date-time": st.datetimes().map(lambda at: at.isoformat(timespec="microseconds") + "Z"),
    "integer": st.integers(),
    "port": st.integers(1, 65535),
    "number": st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
    "boolean": st.booleans(),
    "enum": st.sampled_from(COLOURS),
    "titled": st.sampled_from(["r", "g"]),
    "odd enum": st.sampled_from(DRAWN["odd enum"]["enum"]),
    "several": st.lists(st.sampled_from(COLOURS)),
    "some": st.lists(st.sampled_from(COLOURS), min_size=1, max_size=2, unique=True),
    "several odd": st.lists(st.sampled_from(DRAWN["several odd"]["items"]["enum"])),
    "nullable": st.none() | st.integers(),
    "object": st.fixed_dictionaries({"a": st.integers()}, optional={"b": JSON}),
    "texts": st.lists(ENCODABLE),
    "anything": JSON,
}


@given(st.data(), st.sampled_from(list(VALUES)))
def test_a_value_that_is_shown_is_read_again(data: st.DataObject, name: str) -> None:
    field = field_of(DRAWN[name])
    value = data.draw(VALUES[name])
    assert json.dumps(field.read(field.show(value))) == json.dumps(value)


@given(
    st.lists(
        st.none()
        | st.booleans()
        | st.integers(-3, 3)
        | st.sampled_from([1.0, 0.5])
        | st.text('1a," []', max_size=3),
        min_size=1,
        max_size=5,
    )
)
def test_each_choice_has_a_text_or_the_field_is_one_of_json(enum: list[Any]) -> None:
    for described, value in (({"enum": enum}, enum[0]), ({"type": "array", "items": {"enum": enum}}, enum)):
        field = field_of(described)
        assert field.kind in ("choice", "choices", "json")
        assert field.read(field.show(value)) == value


@given(
    JSON.filter(lambda value: isinstance(value, dict))
    | st.dictionaries(
        st.sampled_from(
            [
                "type",
                "enum",
                "anyOf",
                "items",
                "$ref",
                "default",
                "format",
                "title",
                "const",
                "required",
                "properties",
                "$schema",
                "minimum",
            ]
        ),
        JSON,
        max_size=4,
    )
)
def test_any_schema_gives_a_form_or_a_sentence(schema: Any) -> None:
    for one in (schema, {"properties": {"it": schema}}):
        form = attempt(partial(read_form, params_of(one)))
        for field in [] if isinstance(form, FormError) else form.fields:
            assert field.hint.isprintable()
            attempt(partial(field.read, "1"))
            attempt(partial(field.read, field.default or ""))


@given(
    st.lists(
        st.text(max_size=8)
        | st.tuples(st.sampled_from(list(TOOL["properties"])), st.sampled_from(["=", ":="]), TYPED).map(
            "".join
        ),
        max_size=3,
    ),
    st.just(TOOL) | JSON.filter(lambda value: isinstance(value, dict)),
)
def test_any_pairs_give_members_or_a_sentence(pairs: list[str], schema: Any) -> None:
    members = attempt(lambda: read_pairs(pairs, schema))
    if isinstance(members, FormError):
        return
    assert len(members) == len(pairs)
    json.dumps(members, ensure_ascii=False, allow_nan=False).encode()


@given(
    st.text(max_size=30)
    | st.tuples(st.sampled_from(["http:", "https:", "https://", "https://a@"]), st.text(max_size=20)).map(
        "".join
    )
)
def test_any_url_is_printable_in_one_piece_or_refused(url: str) -> None:
    visit = attempt(lambda: read_url(url))
    if isinstance(visit, FormError):
        return
    assert visit.url.isprintable()
    assert not any(character.isspace() for character in visit.url)
    assert visit.host
    assert all(warning.isprintable() for warning in visit.warnings)
