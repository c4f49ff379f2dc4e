"""Values against the JSON Schemas that a server sent: forms before they go, results when they come.

A schema is a program that the server has written, so its cost is bounded before it runs. ``jsonschema-rs``
evaluates it, a hundred times as fast as ``jsonschema``. But it holds the interpreter's lock meanwhile, so
that a worker thread alone would not free the event loop. Therefore:

- *visits*, each of one subschema at one value, are counted from above before anything is evaluated.
  References multiply them, which is how a schema of 1.5 KB comes to take minutes;
- a *pattern* is matched by a keyword of our own, in linear time. It counts states times characters before
  each match, and other threads get their turn between two matches;
- nothing may be nested too deeply, since deep nesting overflows the evaluator's stack.

References stay inside the document. Nothing is ever fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from . import JSONObject
from .text import quote

if TYPE_CHECKING:
    import jsonschema_rs

__all__ = [
    "FORM_STEPS",
    "INLINE_STEPS",
    "MAX_STEPS",
    "SUBSCHEMAS",
    "TooCostlyError",
    "UnusableSchemaError",
    "find_mismatch",
    "follow_reference",
    "subschemas",
]

INLINE_STEPS: Final = 200_000
"""Steps of a check that an event loop may wait for often. A step takes about 10 ns."""

FORM_STEPS: Final = 400_000
"""Steps of a check that an event loop may wait for, when a person has filled in a form."""

MAX_STEPS: Final = 4_000_000
"""Steps of a check in a worker thread: as many as may pass without a turn of another thread."""

_SHARED: Final = 10
"""Times that limit which all matches together may take: other threads get their turn between two of them."""

_MAX_LEVELS: Final = 128
_MAX_UNFOLDED_LEVELS: Final = 200
"""Levels of nesting of a value or a schema, and of one path through a schema with its references followed."""

_STEPS_TO_COMPILE: Final = 200
"""Steps for each JSON value in a schema; the other costs below are measured likewise."""

_STEPS_TO_COUNT: Final = 50
_MOST_EXPLAINED: Final = 2_000
"""Visits after which a mismatch in alternatives is not explained: each could become an error of its own."""

_REGEX_BYTES: Final = 2**16
"""Bytes of a compiled pattern. A larger one cannot be read."""

_STEPS_TO_COMPILE_PATTERN: Final = 160_000
_STEPS_TO_COMPILE_CHARACTER: Final = 700
_STEPS_TO_MATCH: Final = 100
_STEPS_TO_MATCH_CHARACTER: Final = 4
"""Steps for each state of a pattern at each character."""

_REGEX_TOKEN: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}|.", re.DOTALL)

_IN_PLACE: Final = (
    *("not", "if", "then", "else", "allOf", "anyOf", "oneOf"),
    *("dependentSchemas", "dependencies"),
)
_ONE_BELOW: Final = ("properties", "prefixItems")
_ALL_BELOW: Final = (
    *("patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"),
    *("items", "additionalItems", "unevaluatedItems", "contains"),
)
"""Keywords with subschemas: for the same value, for values inside of it, and of those only one each."""

SUBSCHEMAS: Final = (*_IN_PLACE, *_ONE_BELOW, *_ALL_BELOW, "contentSchema", "$defs", "definitions")
"""All keywords with subschemas. Data that looks like a schema (``default``, ``enum``, …) is none."""

_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)

_QUOTE_NAMES: Final = frozenset({"additionalProperties", "unevaluatedProperties", "propertyNames"})
"""Keywords whose messages quote names that the value has made up."""

_Levels: TypeAlias = list[list[Any]]


class UnusableSchemaError(ValueError):
    """The schema is not valid, or refers to something outside itself: nothing can be said about the value."""


class TooCostlyError(UnusableSchemaError):
    """The value cannot be checked within bounds. The message names the part that is too large."""


def find_mismatch(
    value: Any,
    schema: JSONObject,
    max_steps: int = INLINE_STEPS,
    pass_over: Callable[[str], object] = lambda pattern: None,
) -> str | None:
    """The mismatch of ``value`` and ``schema``: one printable line without the value; ``None`` if they match.

    Formats are not checked. A pattern that cannot be read says nothing about the value: one that only
    JavaScript reads, or one with look-around or back-references, which cannot be matched in linear time.

    Args:
        value: Any JSON value.
        schema: As the server sent it, of any draft from 4 to 2020-12.
        max_steps: ``INLINE_STEPS``, ``FORM_STEPS``, or ``MAX_STEPS`` in a worker thread.
        pass_over: Told of each pattern that cannot be read and that the value has met.

    Raises:
        UnusableSchemaError: The schema is not valid, or refers to something outside itself.
        TooCostlyError: The check could take more than ``max_steps``.
    """
    # Imported here, because most calls have nothing to check.
    from jsonschema_rs import RegexOptions, ValidationError, validator_for

    _check_document(schema, max_steps)
    visits = _Visits(schema, _levels(value, max_steps, "the value"), max_steps)
    patterns = _Patterns(max_steps)
    try:
        validator = validator_for(
            schema,
            mask="the value",
            offline=True,
            validate_formats=False,
            pattern_options=RegexOptions(size_limit=_REGEX_BYTES),
            keywords={"pattern": patterns.make_keyword()},
        )
    except ValidationError as error:
        raise UnusableSchemaError(_describe(error)) from None
    except Exception as error:
        raise UnusableSchemaError(quote(f"{type(error).__name__}: {error}")) from None
    try:
        mismatch = _evaluate(validator, value, explain=visits.can_explain)
        if mismatch is not None and patterns.unreadable:
            # Where a pattern is negated, the value does not match because the pattern does.
            patterns.unreadable_match = False
            mismatch = None if validator.is_valid(value) else mismatch
    except Exception as error:
        # Such as half a surrogate pair, which the evaluator cannot hold. The message could quote the value.
        raise UnusableSchemaError(f"the value cannot be read ({type(error).__name__})") from None
    if patterns.failure is not None:
        raise patterns.failure
    for pattern in patterns.unreadable:
        pass_over(pattern)
    return mismatch


def _evaluate(validator: jsonschema_rs.Validator, value: Any, *, explain: bool) -> str | None:
    from jsonschema_rs import ValidationError

    if validator.is_valid(value):
        return None
    if not explain:
        return "$: the value does not match, and has too many alternatives to say where"
    try:
        validator.validate(value)
    except ValidationError as error:
        return _describe(error)
    return None


def _describe(error: jsonschema_rs.ValidationError) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
    keyword = error.kind.name
    if keyword in _QUOTE_NAMES:
        return quote(f"${path}: the value has members that {keyword} does not allow")
    return quote(f"${path}: {error.message}")


def _levels(value: Any, most: int, name: str) -> _Levels:
    """The JSON values in ``value`` by their depth, ``most`` of them at most."""
    levels, nodes = [[value]], 1
    while containers := [v for v in levels[-1] if isinstance(v, dict | list) and v]:
        nodes += sum(map(len, containers))
        if nodes > most:
            raise TooCostlyError(f"{name} holds more than {most} values")
        if len(levels) == _MAX_LEVELS:
            raise TooCostlyError(f"{name} is nested more than {_MAX_LEVELS} levels deep")
        levels.append([m for v in containers for m in (v.values() if isinstance(v, dict) else v)])
    return levels


def _check_document(schema: JSONObject, max_steps: int) -> None:
    """Refuse a schema whose size, patterns or ways of referring cannot be bounded.

    A nested ``$id`` changes the meaning of the references below it.
    """
    identifier = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
    names = set[str]()
    for level in _levels(schema, max_steps // _STEPS_TO_COMPILE, "the schema"):
        for part in level:
            if not isinstance(part, dict):
                continue
            if part is not schema and isinstance(part.get(identifier), str):
                raise UnusableSchemaError(f"{identifier} inside of a schema is not supported")
            for keyword in ("$dynamicRef", "$recursiveRef"):
                if isinstance(part.get(keyword), str):
                    raise UnusableSchemaError(f"{keyword} is not supported")
            patterns = part.get("patternProperties")
            names.update(patterns if isinstance(patterns, dict) else ())
    if sum(map(_steps_to_compile, names)) > max_steps:
        raise TooCostlyError("the schema has too many patternProperties, or too large ones")


class _Visits:
    """Counts, from above, how many subschemas meet how many values.

    Attributes:
        total: Their number.
        can_explain: Whether there are so few, or none in alternatives, that it may be searched for where the
            value does not match.
    """

    def __init__(self, schema: JSONObject, levels: _Levels, max_steps: int) -> None:
        self._schema = schema
        self._max_steps = max_steps
        self._counts: dict[tuple[int, int], int] = {}
        self._has_alternatives = False
        objects = (v for level in levels for v in level if isinstance(v, dict))
        self._longest_name = max((len(name) for names in objects for name in names), default=0)
        self.total = 0
        for below, level in enumerate(levels):
            self.total += len(level) * self._count(schema, below, 0)
            if self.total > max_steps:
                raise TooCostlyError("the schema unfolds to too much for a value of this size")
        self.can_explain = self.total <= _MOST_EXPLAINED or not self._has_alternatives

    def _count(self, schema: Any, below: int, path: int) -> int:
        """Subschemas of ``schema`` that meet one value, so many levels below where ``schema`` is applied."""
        if not isinstance(schema, dict):
            return 1  # true or false
        key = id(schema), below
        if key not in self._counts:
            if len(self._counts) * _STEPS_TO_COUNT > self._max_steps:
                raise TooCostlyError("the schema is too large for a value that is nested so deeply")
            if path == _MAX_UNFOLDED_LEVELS:
                raise TooCostlyError(f"the schema unfolds to more than {_MAX_UNFOLDED_LEVELS} levels")
            self._counts[key] = self._count_anew(schema, below, path + 1)
        return self._counts[key]

    def _count_anew(self, schema: JSONObject, below: int, path: int) -> int:
        count = sum(self._count(sub, below, path) for sub in subschemas(schema, _IN_PLACE))
        if "$ref" in schema:
            count += self._count(follow_reference(self._schema, schema["$ref"]), below, path)
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            count *= 3  # they evaluate everything beside them again
        if below:
            of_one = [self._count(sub, below - 1, path) for sub in subschemas(schema, _ONE_BELOW)]
            count += max(of_one, default=0)
            count += sum(self._count(sub, below - 1, path) for sub in subschemas(schema, _ALL_BELOW))
            patterns = schema.get("patternProperties")
            if below == 1 and isinstance(patterns, dict):
                count += sum(map(_states, patterns)) * self._longest_name * _STEPS_TO_MATCH_CHARACTER
            return count + 2 * bool(schema.get("uniqueItems"))  # each item is hashed and compared whole
        count += 1 + sum(len(v) for v in schema.values() if isinstance(v, list | dict))
        for keyword in ("enum", "const"):
            if isinstance(schema.get(keyword), list | dict):
                count += sum(map(len, _levels(schema[keyword], self._max_steps, keyword)[2:]))
        self._has_alternatives |= "anyOf" in schema or "oneOf" in schema
        return count


def follow_reference(schema: JSONObject, reference: Any) -> Any:
    """The part of a schema that ``reference``, a JSON Pointer, points to.

    Raises:
        UnusableSchemaError: It points to nothing, or out of the schema.
    """
    path = unquote(str(reference))
    if path != "#" and not path.startswith("#/"):
        raise UnusableSchemaError(f"{quote(path)} is not a reference of the form #/...")
    found: Any = schema
    for part in path.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name) if isinstance(found, list) else name]
        except (LookupError, TypeError, ValueError):
            raise UnusableSchemaError(f"{quote(path)} refers to nothing") from None
    return found


def subschemas(schema: JSONObject, keywords: Iterable[str]) -> Iterator[Any]:
    """The schemas below some keywords of ``schema``. References are not followed."""
    for keyword in keywords:
        found = schema.get(keyword)
        if isinstance(found, list):
            yield from found
        elif keyword in _BY_NAME:
            yield from found.values() if isinstance(found, dict) else ()
        elif keyword in schema:
            yield found


class _Patterns:
    """Matches patterns, and stops matching when they would take too long.

    Args:
        max_steps: Of one match.

    Attributes:
        failure: Why matching was stopped; ``None`` if it was not.
        unreadable: The patterns that cannot be read.
        unreadable_match: Whether those match any text, or none.
    """

    def __init__(self, max_steps: int) -> None:
        self.failure: TooCostlyError | None = None
        self.unreadable: dict[str, None] = {}
        self.unreadable_match = True
        self._max_steps = max_steps
        self._left = _SHARED * max_steps
        self._matchers: dict[str, jsonschema_rs.Validator] = {}

    def make_keyword(self) -> type[jsonschema_rs.KeywordValidator]:
        """The keyword ``pattern``, as ``jsonschema-rs`` takes it."""
        patterns = self

        class Pattern:
            def __init__(self, _schema: JSONObject, pattern: Any, _path: list[str | int]) -> None:
                self._pattern = pattern

            def validate(self, instance: Any) -> None:
                if isinstance(instance, str) and not patterns.match(self._pattern, instance):
                    raise ValueError(f"the value does not match the pattern {self._pattern}")

        return Pattern

    def match(self, pattern: str, text: str) -> bool:
        """Whether ``pattern`` is found in ``text``. False once there is a failure."""
        if self.failure is not None:
            return False
        if pattern in self.unreadable:
            return self.unreadable_match
        steps = _STEPS_TO_MATCH + _states(pattern) * (len(text) + 1) * _STEPS_TO_MATCH_CHARACTER
        if pattern not in self._matchers:
            steps += _steps_to_compile(pattern)
        self._left -= steps
        if steps > self._max_steps or self._left < 0:
            self.failure = TooCostlyError(f"the pattern {quote(pattern)} takes too long")
            return False
        return self._match(pattern, text)

    def _match(self, pattern: str, text: str) -> bool:
        from jsonschema_rs import RegexOptions, ValidationError, validator_for

        if pattern not in self._matchers:
            options = RegexOptions(size_limit=_REGEX_BYTES)
            try:
                self._matchers[pattern] = validator_for({"pattern": pattern}, pattern_options=options)
            except ValidationError:
                self.unreadable[pattern] = None
                return self.unreadable_match
        return self._matchers[pattern].is_valid(text)


def _steps_to_compile(pattern: str) -> int:
    return _STEPS_TO_COMPILE_PATTERN + len(pattern) * _STEPS_TO_COMPILE_CHARACTER


def _states(pattern: str) -> int:
    """States of an automaton for ``pattern``, about. A part that is repeated ``{n}`` times counts n times."""
    groups, last = [0], 0
    for token in _REGEX_TOKEN.findall(pattern):
        if token == "(":
            groups.append(0)
            continue
        if token == ")" and len(groups) > 1:
            last = groups.pop()
        elif len(token) > 1 and token[0] == "{":
            times = int(token.strip("{}").split(",")[-1] or token.strip("{},")) + token.endswith(",}")
            groups[-1] += last * max(times - 1, 0)
            last *= max(times, 1)
            continue
        else:
            last = 1
        groups[-1] += last
    return sum(groups) or 1
