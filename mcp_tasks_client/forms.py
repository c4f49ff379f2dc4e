"""A form of a server as fields that a person fills in, for any surface: a terminal, a page.

::

    form = read_form(question.params)
    texts = {field.name: input(f"{field.title} ({field.hint}): ") for field in form.fields}
    await question.accept(form.read(texts))

A person types texts. A :class:`Field` makes a value of a text, and a text of a value. A
:class:`Form` makes the content of an answer of all texts, and checks the content against the server's
schema. :func:`read_pairs` makes content of ``name=text`` and ``name:=json``, as a command line has them.
:func:`read_url` looks at a URL that a server asks to visit. Pure: nothing is shown, sent, opened or fetched.

Names, titles, descriptions and choices are as the server sent them. Make them harmless before you show
them: a terminal obeys escape sequences, a page obeys markup. The messages of errors are harmless.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit

from mcp_types import ElicitRequestFormParams

from .errors import FormError
from .protocol import JSONObject
from .protocol.json_schema import (
    FORM_STEPS,
    UnusableSchemaError,
    find_mismatch,
    follow_reference,
)
from .protocol.text import is_encodable, quote
from .questions.answers import NoAnswerError, check_form, fill_form, note_pattern

__all__ = ["Choice", "Field", "Form", "Kind", "Visit", "read_form", "read_pairs", "read_url"]

Kind: TypeAlias = Literal["text", "number", "integer", "boolean", "choice", "choices", "json"]
"""The kind of value that a field takes. ``choice`` is one of its choices, and ``choices`` are several of
them. ``json`` is JSON as a text, for a schema that no other kind stands for."""

_LONGEST_URL: Final = 8_192
_MOST_REFERENCES: Final = 8
_MOST_DIGITS: Final = 1_000
_EMPTY: Final = ""
"""A text that the person has not typed."""

_WHOLE: Final = ""
"""The name of the one field that stands for the whole content."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_EMAIL: Final = re.compile(r"[^\s@]+@[^\s@]+")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_YES: Final = frozenset({"yes", "y", "true", "on", "1"})
_NO: Final = frozenset({"no", "n", "false", "off", "0"})
_TYPES: Final[Mapping[str, Kind]] = {
    "string": "text",
    "number": "number",
    "integer": "integer",
    "boolean": "boolean",
}
_COMBINING: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "dependentSchemas")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the values that a field offers."""

    value: str | int | float | bool | None
    """As it is sent."""

    title: str
    """For people; the value itself where the server gave no title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value that a server asks for."""

    name: str
    """In the content; empty for the one field that stands for the whole content."""

    title: str
    """For people; the name where the server gave no title."""

    description: str | None
    """The server's description of the field; ``None`` if there is none."""

    kind: Kind
    """The kind of value that the field takes."""

    format: str | None
    """The form of a text, ``email``, ``uri``, ``date`` or ``date-time``; ``None`` for any other."""

    choices: tuple[Choice, ...]
    """The values that the field offers, for the kinds ``choice`` and ``choices``."""

    default: str | None
    """The default as a text to begin with, which a person may change; ``None`` if there is none."""

    required: bool
    """True where a value is needed. An empty text leaves any other field out of the content."""

    hint: str
    """The values that fit, in a few words of ours, such as "a whole number, 1 to 10"."""

    numbered: bool
    """True where a choice can also be named by its number from 1 on, since no choice looks like a number."""

    schema: Any = field(repr=False)
    """The server's own description, which is all there is to show for the kind ``json``."""

    _nullable: bool = field(repr=False)
    _keys: Mapping[str, int] = field(repr=False)
    _checked: JSONObject = field(repr=False)

    def read(self, text: str) -> Any:
        """The value that a text stands for, checked against the field's schema.

        A choice is named by its value, its number or its title, several are separated by commas, and a
        boolean is ``yes`` or ``no``. An empty text is ``None`` where the field may be left out.

        Raises:
            FormError: The text stands for no value that fits. The message has the reason and the values that
                fit, and quotes nothing of the text.
        """
        if not is_encodable(text):
            raise self._error("the text holds half of a character (a surrogate)")
        if self._is_empty(text):
            return self._read_empty()
        value = self._read(text)
        self._check(value)
        return value

    def show(self, value: Any) -> str:
        """A text that :meth:`read` makes this value of.

        An empty text stands for ``None``. No other text stands for a value of ``""``.

        Raises:
            FormError: The value is of another kind.
        """
        try:
            text = _EMPTY if value is None and self.kind not in ("json", "choice") else self._show(value)
        except (TypeError, ValueError, RecursionError):  # it has no JSON form
            text = None
        if text is None or not is_encodable(text):
            raise self._error("the value is of another kind")
        return text

    def leaves_out(self, text: str) -> bool:
        """True for a text that leaves the field out of the content."""
        return not self.required and self._is_empty(text)

    # ── from texts ────────────────────────────────────────────────────────────────────────────

    def _is_empty(self, text: str) -> bool:
        return not (text if self.kind == "text" and self.format is None else text.strip())

    def _read_empty(self) -> Any:
        if not self.required or self._nullable:
            return None
        if self.kind == "choices" and self._problem_of([]) is None:
            return []
        if self.kind == "text" and self.default == _EMPTY and self._problem_of(_EMPTY) is None:
            return _EMPTY
        raise self._error("a value is needed")

    def _read(self, text: str) -> Any:
        match self.kind:
            case "integer":
                return self._made(_read_integer(text), "this is no whole number")
            case "number":
                return self._made(_read_number(text), "this is no number")
            case "boolean":
                return self._made(_read_boolean(text), "this is neither yes nor no")
            case "choice":
                return self.choices[self._made(self._find(text), "this is none of the choices")].value
            case "choices":
                return self._read_choices(text)
            case "json":
                try:
                    return _read_json(text)
                except ValueError as error:
                    raise self._error(f"this is no JSON: {error}") from None
            case _:
                return self._read_text(text)

    def _made(self, value: Any, problem: str) -> Any:
        if value is None:
            raise self._error(problem)
        return value

    def _read_text(self, text: str) -> str:
        if self.format is None:
            return text
        fits, _ = _FORMATS[self.format]
        if not fits(text.strip()):
            raise self._error("the text has another form")
        return text.strip()

    def _find(self, text: str) -> int | None:
        """The place of the choice that a text names."""
        bare = text.strip()
        return next((self._keys[key] for key in (text, bare, bare.casefold()) if key in self._keys), None)

    def _read_choices(self, text: str) -> list[Any]:
        listed = self._read_list(text)
        if listed is not None:
            return listed
        places: dict[int, None] = {}
        for number, item in enumerate((one for one in text.split(",") if one.strip()), start=1):
            places[self._made(self._find(item), f"number {number} of them is none of the choices")] = None
        return [self.choices[place].value for place in places]

    def _read_list(self, text: str) -> list[Any] | None:
        """A JSON array of choices; ``None`` if the text is none."""
        try:
            listed = _read_json(text)
        except ValueError:
            return None
        places = [self._place(value) for value in listed] if isinstance(listed, list) else [None]
        return (
            None if None in places else [self.choices[place].value for place in places if place is not None]
        )

    # ── from values ───────────────────────────────────────────────────────────────────────────

    def _show(self, value: Any) -> str | None:
        match self.kind:
            case "boolean":
                return ("yes" if value else "no") if isinstance(value, bool) else None
            case "integer" | "number":
                return _show_number(value, whole=self.kind == "integer")
            case "choice":
                place = self._place(value)
                return None if place is None else self._name(place)
            case "choices":
                return self._show_choices(value)
            case "json":
                return _dump(value)
            case _:
                return value if isinstance(value, str) else None

    def _place(self, value: Any) -> int | None:
        """The place of the choice that has this value."""
        if isinstance(value, list | dict):
            return None
        # Not by comparing: True equals 1, and JSON tells them apart.
        return self._keys.get(_json_key(value))

    def _name(self, place: int) -> str | None:
        """A text that names a choice and no other; ``None`` if there is none."""
        value = self.choices[place].value
        names = [value if isinstance(value, str) else _dump(value)]
        names += [str(place + 1)] if self.numbered else []
        names += [_dump(value)]
        return next((name for name in names if name.strip() and self._find(name) == place), None)

    def _show_choices(self, value: Any) -> str | None:
        if not isinstance(value, list):
            return None
        if not value:
            return _EMPTY if self.required else "[]"
        places = [self._place(one) for one in value]
        if None in places:
            return None
        text = ", ".join(str(self._name(place)) for place in places if place is not None)
        try:
            return text if self._read_choices(text) == value else _dump(value)
        except FormError:  # a choice has a comma in it
            return _dump(value)

    # ── checked ───────────────────────────────────────────────────────────────────────────────

    def _check(self, value: Any) -> None:
        problem = self._problem_of(value)
        if problem is not None:
            raise self._error(problem)

    def _problem_of(self, value: Any) -> str | None:
        """The mismatch of a value and the schema of the field; ``None`` if there is none."""
        try:
            # As an item, since its place in the message is short then, however long the name is.
            problem = find_mismatch([value], self._checked, FORM_STEPS, note_pattern)
        except UnusableSchemaError as error:
            raise self._error(f"the server's schema cannot be used: {error}") from None
        return None if problem is None else problem.removeprefix("$[0]").removeprefix(": ")

    def _error(self, problem: str) -> FormError:
        name = quote(self.name) or "the answer"
        return FormError(f"{name}: {problem}. Needed: {self.hint}.", field=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """All that a server asks for in one question.

    A form without fields asks for a yes or a no alone.
    """

    fields: tuple[Field, ...]
    """In the order of the server's schema."""

    _params: ElicitRequestFormParams = field(repr=False)
    _is_whole: bool = field(repr=False)

    def read(self, texts: Mapping[str, str]) -> JSONObject:
        """The content that the texts of all fields stand for, by the names of the fields.

        A field without a text is left out, and has its default if it is required.

        Raises:
            FormError: A text stands for no value that fits, or the content does not match the schema. In the
                first case the ``field`` of the error names the field.
        """
        content: JSONObject = {}
        for one in self.fields:
            text = texts.get(one.name)
            if text is None or one.leaves_out(text):
                continue
            content[one.name] = one.read(text)
        if not self._is_whole:
            return self.check(content)
        whole = content.get(_WHOLE, {})
        assert isinstance(whole, dict)  # the field has checked it
        return self.check(whole)

    def show(self, content: JSONObject) -> dict[str, str]:
        """The texts of the fields for some content; empty for a field that is left out.

        Raises:
            FormError: A value is of another kind than its field, or has no field.
        """
        values = {_WHOLE: content} if self._is_whole else content
        names = {one.name for one in self.fields}
        for name in values:
            if name not in names:
                raise FormError(f"The form has no field {quote(repr(name))}.", field=name)
        return {one.name: one.show(values[one.name]) if one.name in values else _EMPTY for one in self.fields}

    def check(self, content: JSONObject) -> JSONObject:
        """The content to send: with the default of each required field that it leaves out.

        Raises:
            FormError: The content does not match the schema.
        """
        filled = fill_form(content, self._params)
        try:
            problem = check_form(filled, self._params)
        except NoAnswerError as error:
            raise FormError(f"The form cannot be answered: {error}.") from None
        if problem is not None:
            raise FormError(f"The content does not match the form: {problem}.")
        return filled


def read_form(params: ElicitRequestFormParams) -> Form:
    """The form that a server asks to fill in.

    A part that is no field of the protocol's, such as an object, is a field of the kind ``json``. So is the
    whole content, if the schema does not describe it by properties.

    Raises:
        FormError: The schema cannot be used: it is not valid, or costs too much.
    """
    try:
        check_form({}, params)
    except NoAnswerError as error:
        raise FormError(f"The form cannot be answered: {error}.") from None
    schema = params.requested_schema
    if schema.get("type", "object") != "object" or any(keyword in schema for keyword in _COMBINING):
        return Form(fields=(_whole_field(schema),), _params=params, _is_whole=True)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    undescribed = {name: True for name in required if name not in properties}
    fields = [
        _make_field(name, described, schema, is_required=name in required)
        for name, described in {**properties, **undescribed}.items()
    ]
    return Form(fields=tuple(fields), _params=params, _is_whole=False)


def read_pairs(pairs: Iterable[str], schema: JSONObject) -> JSONObject:
    """The members that pairs such as ``name=text`` and ``name:=json`` stand for.

    A text is a number or a boolean only where the schema says so. The first ``=`` ends the name. The members
    are not checked: :meth:`Form.check` and the server do that.

    Args:
        pairs: As a command line has them.
        schema: Of the object that the members belong to: a form's, or the input schema of a tool.

    Raises:
        FormError: A text is no such pair, names a member a second time, or stands for no value of its type.
    """
    members: JSONObject = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        is_json = name.endswith(":")
        name = name[:-1] if is_json else name
        if not (equals and name):
            raise FormError(f"{quote(name)!r} has no value. Write name=text or name:=json.")
        if not is_encodable(pair):
            raise FormError("A value holds half of a character (a surrogate).", field=name)
        if name in members:
            raise FormError(f"{quote(name)} is given twice.", field=name)
        if not is_json:
            members[name] = _convert(name, text, schema)
            continue
        try:
            members[name] = _read_json(text)
        except ValueError as error:
            raise FormError(f"{quote(name)}: this is no JSON: {error}.", field=name) from None
    return members


# ── from a schema to a field ──────────────────────────────────────────────────────────────────────


def _whole_field(schema: JSONObject) -> Field:
    return Field(
        name=_WHOLE,
        title="The whole answer",
        description=None,
        kind="json",
        format=None,
        choices=(),
        default=None,
        required=True,
        hint='a JSON object, such as {"name": "value"}',
        numbered=False,
        schema=schema,
        _nullable=False,
        _keys={},
        _checked={"items": {"type": "object"}},
    )


def _make_field(name: str, described: Any, schema: JSONObject, *, is_required: bool) -> Field:
    """The field of one property."""
    plain, nullable = _unfold(described, schema)
    kind, choices = _kind_of(plain)
    keys: Mapping[str, int] = {}
    numbered = False
    if choices:
        numbered = not any(
            text.strip().isdecimal() for choice in choices for text in (choice.title, _raw(choice.value))
        )
        keys = _make_keys(choices, numbered=numbered)
    format_ = plain.get("format")
    rest = ("$schema", "$defs", "definitions", "properties")
    made = Field(
        name=name,
        title=_words(plain.get("title")) or name,
        description=_words(plain.get("description")),
        kind=kind,
        format=format_ if kind == "text" and format_ in _FORMATS else None,
        choices=choices,
        default=None,
        required=is_required,
        hint=_hint_of(kind, plain, numbered=numbered),
        numbered=numbered,
        schema=described,
        _nullable=nullable,
        _keys=keys,
        _checked={**{key: schema[key] for key in rest if key in schema}, "items": described},
    )
    if any(made._name(place) is None for place in range(len(choices))):
        # No text would name one of them, as where 1 and "1" are choices and "\"1\"" is one as well.
        made = replace(made, kind="json", choices=(), numbered=False, hint=_hint_of("json", {}))
    return replace(made, default=_show_default(made, plain))


def _show_default(made: Field, plain: JSONObject) -> str | None:
    if plain.get("default") is None:
        return None
    try:
        return made.show(plain["default"])
    except FormError:  # the server gave one of another kind
        return None


def _unfold(described: Any, schema: JSONObject) -> tuple[JSONObject, bool]:
    """The schema of a property without references and ``null``, and whether ``null`` was among its types."""
    plain: JSONObject = described if isinstance(described, dict) else {}
    nullable = False
    for _ in range(_MOST_REFERENCES):
        beside = {key: value for key, value in plain.items() if key not in ("$ref", "anyOf", "oneOf")}
        if "$ref" in plain:
            try:
                target = follow_reference(schema, plain["$ref"])
            except UnusableSchemaError:
                break
            plain = {**(target if isinstance(target, dict) else {}), **beside}
            continue
        keyword = next((key for key in ("anyOf", "oneOf") if isinstance(plain.get(key), list)), None)
        others = [] if keyword is None else [other for other in plain[keyword] if other != {"type": "null"}]
        if keyword is None or len(others) != 1 or len(plain[keyword]) == 1 or not isinstance(others[0], dict):
            break
        plain, nullable = {**others[0], **beside}, True
    types = plain.get("type")
    if isinstance(types, list) and "null" in types and len(types) == 2:
        plain, nullable = {**plain, "type": next(other for other in types if other != "null")}, True
    return plain, nullable


def _kind_of(plain: JSONObject) -> tuple[Kind, tuple[Choice, ...]]:
    choices = _choices_of(plain)
    if choices:
        return "choice", choices
    if plain.get("type") == "array":
        items = plain.get("items")
        choices = _choices_of(items) if isinstance(items, dict) else ()
        return ("choices", choices) if choices else ("json", ())
    types = plain.get("type")
    if any(key in plain for key in ("$ref", "anyOf", "oneOf", "enum", "const")) or not isinstance(types, str):
        return "json", ()
    return _TYPES.get(types, "json"), ()


def _choices_of(plain: JSONObject) -> tuple[Choice, ...]:
    """The choices of a schema; none if it offers none, or some that are no single values."""
    enum, titles = plain.get("enum"), plain.get("enumNames")
    if isinstance(enum, list):
        names = titles if isinstance(titles, list) and len(titles) == len(enum) else [None] * len(enum)
        offered = list(zip(enum, names, strict=True))
    elif "const" in plain:
        offered = [(plain["const"], None)]
    else:
        parts = plain.get("oneOf", plain.get("anyOf"))
        if not isinstance(parts, list) or not all(isinstance(p, dict) and "const" in p for p in parts):
            return ()
        offered = [(part["const"], part.get("title")) for part in parts]
    if any(isinstance(value, list | dict) for value, _ in offered):
        return ()
    return tuple(Choice(value, _words(title) or _raw(value)) for value, title in offered)


def _make_keys(choices: tuple[Choice, ...], *, numbered: bool) -> dict[str, int]:
    """The places of choices by the texts that name them. Of two with the same text the first has it."""
    keys: dict[str, int] = {}
    raw = [_raw(choice.value) for choice in choices]
    titles = [choice.title for choice in choices]
    loose = [{text.strip().casefold() for text in pair} for pair in zip(raw, titles, strict=True)]
    seen = Counter(text for texts in loose for text in texts)
    named_twice = {title for title, times in Counter(titles).items() if times > 1}
    numbers = [str(place + 1) for place in range(len(choices))] if numbered else []
    for texts in (
        [_json_key(choice.value) for choice in choices],
        raw,
        [_dump(choice.value) for choice in choices],
        numbers,
        titles,
    ):
        for place, text in enumerate(texts):
            if texts is not titles or text not in named_twice:
                keys.setdefault(text, place)
    for place, folded in enumerate(loose):
        for text in folded:
            if seen[text] == 1:
                keys.setdefault(text, place)
    return keys


def _hint_of(kind: Kind, plain: JSONObject, *, numbered: bool = False) -> str:
    match kind:
        case "text" if (known := _FORMATS.get(str(plain.get("format")))) is not None:
            return known[1]
        case "text":
            bounds = _bounds(plain, "minLength", "maxLength")
            return f"a text of {bounds} characters" if bounds else "a text"
        case "integer" | "number":
            bounds = _bounds(plain, "minimum", "maximum")
            number = "a whole number" if kind == "integer" else "a number"
            return f"{number}, {bounds}" if bounds else number
        case "boolean":
            return "yes or no"
        case "choice":
            return f"one of them, by its {'number or ' if numbered else ''}value"
        case "choices":
            return f"{_bounds(plain, 'minItems', 'maxItems') or 'any'} of them, separated by commas"
        case _:
            return 'JSON, such as "text", 3 or {"name": "value"}'


def _bounds(plain: JSONObject, least: str, most: str) -> str | None:
    """The bounds of a schema in words; ``None`` if it has none."""
    low, high = (quote(_dump(plain[name])) if name in plain else None for name in (least, most))
    if low is None:
        return None if high is None else f"at most {high}"
    if high is None:
        return f"at least {low}"
    return f"exactly {low}" if low == high else f"{low} to {high}"


def _words(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


# ── texts and values ──────────────────────────────────────────────────────────────────────────────


def _raw(value: Any) -> str:
    """A single value as a person would type it."""
    return value if isinstance(value, str) else _dump(value)


def _json_key(value: Any) -> str:
    """A name for a single value that no person types, equal for equal JSON."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"\0{_dump(value)}"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _read_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: It is none. The message quotes nothing of it.
    """
    try:
        value = json.loads(
            text, parse_constant=_refuse_constant, parse_float=_read_float, parse_int=_read_int
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not is_encodable(_dump(value)):
        raise ValueError("it holds half of a character (a surrogate)")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _read_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number


def _read_int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number is too large")
    return int(text)


def _read_integer(text: str) -> int | None:
    bare = text.strip()
    return int(bare) if _INTEGER.fullmatch(bare) and len(bare) <= _MOST_DIGITS else None


def _read_number(text: str) -> int | float | None:
    bare = text.strip()
    whole = _read_integer(bare)
    if whole is not None or not _NUMBER.fullmatch(bare):
        return whole
    number = float(bare)
    return None if math.isinf(number) else number


def _read_boolean(text: str) -> bool | None:
    word = text.strip().casefold()
    return True if word in _YES else False if word in _NO else None


def _show_number(value: Any, *, whole: bool) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if whole:
        return str(int(value)) if isinstance(value, int) or value.is_integer() else None
    return _dump(value)


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and _is_made(date.fromisoformat, text)


def _is_date_time(text: str) -> bool:
    return _DATE_TIME.fullmatch(text) is not None and _is_made(datetime.fromisoformat, text.upper())


def _is_made(make: Callable[[str], object], text: str) -> bool:
    try:
        make(text)
    except ValueError:
        return False
    return True


_FORMATS: Final[Mapping[str, tuple[Callable[[str], object], str]]] = {
    "email": (_EMAIL.fullmatch, "an e-mail address, such as ada@example.com"),
    "uri": (_URI.fullmatch, "a URI, such as https://example.com/"),
    "date": (_is_date, "a date, such as 2026-11-28"),
    "date-time": (_is_date_time, "a date and a time with its zone, such as 2026-11-28T14:30:00Z"),
}
"""The formats of the protocol, which JSON Schema itself does not check: a check that refuses only texts that
are surely wrong, and the texts that fit, in words."""


def _convert(name: str, text: str, schema: JSONObject) -> Any:
    """The value of a text under a name: a number or a boolean if only that fits, else the text."""
    properties = schema.get("properties")
    described = properties.get(name) if isinstance(properties, dict) else None
    plain, _ = _unfold(described, schema)
    kind, choices = _kind_of(plain)
    match kind:
        case "integer" | "number":
            value: Any = _read_integer(text) if kind == "integer" else _read_number(text)
        case "boolean":
            value = _read_boolean(text)
        case "choice":
            return next((choice.value for choice in choices if _raw(choice.value) == text), text)
        case _:
            value = text if kind == "text" or _takes_text(plain) else None
    if value is None:
        needed = "JSON" if kind in ("json", "choices") else _hint_of(kind, {})
        raise FormError(
            f"{quote(name)}: {needed} is needed. JSON is given as {quote(name)}:=json.", field=name
        )
    return value


def _takes_text(plain: JSONObject) -> bool:
    """True for a schema that may allow a text, as far as its types tell."""
    types = plain.get("type")
    if types is not None:
        return types == "string" or (isinstance(types, list) and "string" in types)
    parts = plain.get("anyOf", plain.get("oneOf"))
    if not isinstance(parts, list):
        return True
    return any(not isinstance(part, dict) or part.get("type", "string") == "string" for part in parts)


# ── a URL to visit ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A URL that a server asks a person to visit, as it should be shown before the person agrees.

    Show all of it, and do not open it unasked.
    """

    url: str
    """The whole of it, printable and without blanks."""

    host: str
    """The host that it leads to, in small letters, without the port."""

    warnings: tuple[str, ...]
    """The warnings about the URL, each a sentence."""


def read_url(url: str) -> Visit:
    """A URL of a server's question, taken apart. Nothing is opened or fetched.

    Raises:
        FormError: It is no URL of ``http`` or ``https`` that all programs read alike. The message quotes
            nothing of it but its scheme.
    """
    if len(url) > _LONGEST_URL:
        raise FormError(f"The server asks to visit a URL of more than {_LONGEST_URL} characters.")
    if not url.isprintable() or any(character.isspace() or character == "\\" for character in url):
        # Browsers drop line breaks and turn backslashes, so that the host would be another than is shown.
        raise FormError("The server asks to visit a URL with blanks, backslashes or characters unseen.")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # a port that is no number raises
    except ValueError:
        raise FormError("The server asks to visit something that is no URL.") from None
    if parts.scheme not in ("http", "https"):
        scheme = quote(parts.scheme)[:40] or "none"
        raise FormError(f"The server asks to visit a URL of another scheme than http or https: {scheme}.")
    if not host or "%" in parts.netloc.rpartition("@")[2] or not url[len(parts.scheme) :].startswith("://"):
        raise FormError("The server asks to visit a URL without a plain host.")
    return Visit(url=url, host=host, warnings=tuple(_warnings(parts, host)))


def _warnings(parts: SplitResult, host: str) -> Iterator[str]:
    if parts.scheme != "https":
        yield "The connection is not encrypted: the URL is not of https."
    if "@" in parts.netloc:
        yield "There is a name before an @, which is not the host. The host comes after it."
    if not host.isascii():
        yield f"The host has letters that may look like others.{_ascii(host)}"
    if any(label.startswith("xn--") for label in host.split(".")):
        yield "The host is in Punycode (xn--): a browser may show another name, like one that you know."


def _ascii(host: str) -> str:
    try:
        return f" In ASCII it is {host.encode('idna').decode()}."
    except UnicodeError:
        return ""
