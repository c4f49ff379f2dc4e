"""Foreign text made safe: shortened and escaped for messages, encoded for HTTP headers, hashed for keys.

Everything that a server wrote and that goes into an error, a log or a trace passes :func:`quote` first.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Final

from ..foreign_text import one_line, redact, shorten
from . import MalformedError

__all__ = ["digest", "excerpt", "header_value", "is_encodable", "name_tool", "quote", "redact", "shorten"]

LONGEST_EXCERPT: Final = 1000
"""Characters that are kept of a value that a server sent in place of a text, at most."""

LONGEST_QUOTE: Final = 300
"""Characters of foreign text that one message quotes, at most."""

_HEADER_SAFE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_LOOKS_ENCODED: Final = re.compile(r"=\?base64\?.*\?=", re.DOTALL)
_MAY_HAVE_FLOATS: Final = re.compile(r"\d[.e]")
_SORTED_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def quote(text: str, task_id: str | None = None) -> str:
    """``text`` as a message may quote it: one line, printable, at most 300 characters, no task ID.

    Args:
        text: Of a server. It may hold line breaks, terminal escape sequences, megabytes.
        task_id: Shortened wherever it occurs; ``None`` if there is no task.
    """
    # The cut comes first, so that a text of megabytes costs nothing, and leaves room for escapes.
    cut = len(text) > LONGEST_QUOTE
    line = one_line(text[: 4 * LONGEST_QUOTE], 4 * LONGEST_QUOTE, task_id=task_id)
    return f"{line[:LONGEST_QUOTE]}…" if cut or len(line) > LONGEST_QUOTE else line


def excerpt(value: object) -> str:
    """A server's value as a text of bounded length: a text as it is, all else as JSON."""
    return (value if isinstance(value, str) else json.dumps(value))[:LONGEST_EXCERPT]


def name_tool(tool: str | None) -> str:
    """The name of a tool for a message. Of a task that was attached by its ID, the tool is not known."""
    return "an unknown tool" if tool is None else repr(tool)


def is_encodable(text: str) -> bool:
    """Whether ``text`` has a UTF-8 form. A lone surrogate, half of a character, has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def header_value(value: str) -> str:
    """``value`` as an HTTP header can carry it, byte for byte.

    Printable ASCII without outer blanks goes as it is. Everything else, and a value that
    already looks encoded, goes as ``=?base64?…?=`` over UTF-8.

    Raises:
        MalformedError: The text has no UTF-8 form (a lone surrogate), so no header can carry it.
    """
    if _HEADER_SAFE.fullmatch(value) and not _LOOKS_ENCODED.fullmatch(value):
        return value
    try:
        encoded = base64.b64encode(value.encode()).decode("ascii")
    except UnicodeEncodeError as error:
        raise MalformedError(
            f"{shorten(value)!a} has no UTF-8 form, so no HTTP header can carry it"
        ) from error
    return f"=?base64?{encoded}?="


def digest(value: object) -> str:
    """SHA-256, in hex, of ``value`` as JSON with sorted keys: equal for equal JSON.

    ``1`` and ``1.0`` are equal numbers there, and ``true`` is none.

    Raises:
        TypeError: ``value`` holds something that has no JSON form.
    """
    text = _SORTED_JSON.encode(value)
    if _MAY_HAVE_FLOATS.search(text):
        text = _SORTED_JSON.encode(json.loads(text, parse_float=_number))
    return hashlib.sha256(text.encode()).hexdigest()


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number
