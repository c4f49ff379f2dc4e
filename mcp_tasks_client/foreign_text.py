"""Foreign text made harmless where it is shown: in a terminal, a page, a log.

A server writes names, titles, messages and results; other programs write labels. Any of it may hold terminal
escape sequences, characters that turn the reading direction, megabytes, and the ID of the task, which is a
credential.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["many_lines", "one_line", "redact", "replace_halves", "shorten"]

_HALF: Final = re.compile("[\ud800-\udfff]")

LONGEST_LINE: Final = 300
"""Characters of one line, unless the caller says otherwise."""

LONGEST_TEXT: Final = 20_000
"""Characters of a text of many lines, likewise."""


def one_line(text: str, longest: int = LONGEST_LINE, *, task_id: str | None = None) -> str:
    """``text`` in one line of printable characters, with single blanks between them.

    Args:
        text: Of a server, or of another program.
        longest: Characters that are kept. A text that was cut ends with ``…``.
        task_id: Shortened wherever it occurs; ``None`` if there is no task.
    """
    text = redact(text, task_id)
    return _cut(_printable(text[: 4 * longest]), longest, is_cut=len(text) > 4 * longest)


def many_lines(text: str, longest: int = LONGEST_TEXT, most: int | None = None) -> str:
    """``text`` in lines of printable characters. Line breaks and indentation stay.

    Args:
        text: Of a server, or of another program.
        longest: Characters that are kept, line breaks included. A text that was cut ends with ``…``.
        most: Lines that are kept; ``None`` is any number.
    """
    lines = text[: longest + 1].replace("\r\n", "\n").split("\n")
    is_cut = len(text) > longest or (most is not None and len(lines) > most)
    shown = "\n".join(_indented(line) for line in lines[:most])
    return _cut(shown, longest, is_cut=is_cut)


def replace_halves(text: str) -> str:
    """``text`` with U+FFFD in place of each half of a character (a surrogate), which many parsers refuse."""
    return _HALF.sub("\ufffd", text)


def redact(text: str, task_id: str | None) -> str:
    """``text`` with the task ID in it shortened."""
    return text.replace(task_id, shorten(task_id)) if task_id else text


def shorten(task_id: str) -> str:
    """Enough of a task ID to recognise it in a log, too little to use it. Printable, and in one line."""
    return f"{_printable(task_id[: min(8, len(task_id) // 3)])}…"


def _cut(text: str, longest: int, *, is_cut: bool) -> str:
    if len(text) <= longest and not is_cut:
        return text
    return f"{text[: longest - 1].rstrip()}…"


def _printable(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _indented(line: str) -> str:
    """A line whose blanks stay, since they may align columns."""
    return "".join(c if c.isprintable() else " " for c in line.expandtabs(4)).rstrip()
