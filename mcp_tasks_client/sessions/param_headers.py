"""``x-mcp-header``: arguments of a tool that also travel as ``Mcp-Param-*`` HTTP headers.

A tool's input schema may mark properties with ``x-mcp-header: <token>``, so that a gateway can route by an
argument without reading the body. Servers compare header and body and refuse a call in which they differ, so
both sides must agree exactly on the marks and on the spelling of values. Pure: no clock, no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from ..protocol import MalformedError
from ..protocol.json_schema import SUBSCHEMAS, subschemas
from ..protocol.text import header_value

__all__ = ["FIELD_NAME", "HeaderMap", "header_map", "param_headers"]

HeaderMap: TypeAlias = dict[tuple[str, ...], str]
"""Tokens by the chain of property names that leads from the arguments to the value."""

_ANNOTATION: Final = "x-mcp-header"
_PREFIX: Final = "Mcp-Param-"

FIELD_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""The name of an HTTP field (a token of RFC 9110, 5.6.2)."""

# No "number": fractions are not written alike everywhere.
_TYPES: Final = frozenset({"string", "integer", "boolean"})

_ELSEWHERE: Final = tuple(keyword for keyword in SUBSCHEMAS if keyword != "properties")


def header_map(input_schema: object) -> HeaderMap:
    """The marked properties of a tool's input schema.

    Raises:
        MalformedError: A mark that the protocol does not allow: somewhere else than on a property
            that is reached through ``properties`` alone, on another type than string, integer or
            boolean, not a token, or used twice. The tool must then not be offered.

    Source: MCP 2026-07-28, Streamable HTTP, "Custom Headers".
    """
    found: HeaderMap = {}
    tokens: set[str] = set()
    for path, schema in _schemas(input_schema):
        if _ANNOTATION not in schema:
            continue
        if not path:
            raise MalformedError(f"{_ANNOTATION} stands where no argument can be told by its path")
        where, token = ".".join(path), schema[_ANNOTATION]
        if not isinstance(token, str) or not FIELD_NAME.fullmatch(token):
            raise MalformedError(f"{_ANNOTATION} of {where!a} is not a token that a header name can hold")
        kind = schema.get("type")
        if not isinstance(kind, str) or kind not in _TYPES:
            raise MalformedError(f"{_ANNOTATION} of {where!a} is on another type than {sorted(_TYPES)}")
        if token.lower() in tokens:
            raise MalformedError(f"{_ANNOTATION} of {where!a} repeats {token!a}")
        tokens.add(token.lower())
        found[path] = token
    return found


def _schemas(root: object) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Every schema in ``root`` with the property names that lead to it; ``None`` if others do too."""
    # A list instead of recursion: a schema may be nested deeper than Python can call.
    pending: list[tuple[tuple[str, ...] | None, object]] = [((), root)]
    while pending:
        path, schema = pending.pop()
        if not isinstance(schema, dict):
            continue
        yield path, schema
        properties = schema.get("properties")
        if isinstance(properties, dict):
            below = properties.items()
            pending += [((*path, name) if path is not None else None, sub) for name, sub in below]
        pending += [(None, sub) for sub in subschemas(schema, _ELSEWHERE)]


def param_headers(tokens: HeaderMap, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The ``Mcp-Param-*`` headers of a call with these arguments; none for an absent or null one.

    Raises:
        MalformedError: A text has no UTF-8 form, so no header can carry it.
    """
    headers: dict[str, str] = {}
    for path, token in tokens.items():
        text = _as_text(_value_at(path, arguments))
        if text is None:
            continue
        try:
            headers[_PREFIX + token] = header_value(text)
        except MalformedError as error:
            raise MalformedError(
                f"The argument {'.'.join(path)!a} also travels as a header, and {error}."
            ) from None
    return headers


def _value_at(path: tuple[str, ...], arguments: Mapping[str, Any]) -> object:
    value: object = arguments
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _as_text(value: object) -> str | None:
    """A scalar as the header has it; ``None`` for any other value."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            return None
