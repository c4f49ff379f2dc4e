"""The output of the command: the result or the list on stdout, all else on stderr."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp_tasks_client.foreign_text import many_lines, one_line, replace_halves

from .exits import CommandError, Exit

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock
    from pydantic import BaseModel
    from rich.console import Console, RenderableType

__all__ = [
    "Output",
    "as_sent",
    "dump",
    "fail_to_write",
    "make_console",
    "read_result",
]


class Output:
    """The output of one verb.

    Args:
        as_json: stdout has one JSON document, and an error is one line of JSON.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    @property
    def shows_progress(self) -> bool:
        """False where a program reads stderr, which has an error in JSON then."""
        return not self.as_json or sys.stderr.isatty()

    def note(self, text: str) -> None:
        """Tell a person something, on stderr. The text may be foreign."""
        _write(sys.stderr, f"{_fit(many_lines(text))}\n")

    def next(self, line: str) -> None:
        """Name the command that comes next, in one piece, so that it can be copied."""
        _write(sys.stderr, f"  {many_lines(line)}\n")

    def fail(self, error: CommandError) -> None:
        """Tell why the command fails."""
        if not self.as_json:
            self.note(f"mcp-tasks: {error}")
            if error.next is not None:
                self.next(error.next)
            return
        _write(sys.stderr, f"{dump({'error': error.document()})}\n")

    def document(self, document: Any) -> None:
        """Write a JSON document in one line.

        Raises:
            OSError: stdout is closed, or its disk is full.
        """
        _write(sys.stdout, f"{dump(document)}\n")

    def text(self, text: str) -> None:
        """Write a text of many lines, which may be foreign, to its end.

        Raises:
            OSError: As above.
        """
        # A message of a server is bounded already, and its outcome counts as received once it is written.
        _write(sys.stdout, f"{many_lines(text, sys.maxsize)}\n")

    def draw(self, *parts: RenderableType) -> None:
        """Draw tables and the like, which hold foreign text as plain ``Text`` alone.

        Raises:
            OSError: As above.
        """
        console = make_console()
        for part in parts:
            console.print(part)
        sys.stdout.flush()


def _fit(text: str) -> str:
    """A text whose lines end between words, where a terminal would end them within."""
    if not sys.stderr.isatty():
        return text
    fill = partial(textwrap.fill, width=shutil.get_terminal_size().columns, break_long_words=False)
    return "\n".join(fill(line, break_on_hyphens=False) for line in text.split("\n"))


def make_console(*, stderr: bool = False) -> Console:
    """A console that takes nothing in a text for markup. It heeds ``NO_COLOR`` and ``TERM=dumb`` itself."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def dump(document: Any) -> str:
    """A document as JSON of printable ASCII, with all other characters escaped.

    A number that JSON lacks, such as NaN, is ``null``, and half of a character is U+FFFD, since many a parser
    would refuse the whole document.
    """
    encode = partial(json.dumps, default=str, allow_nan=False, ensure_ascii=False)
    try:
        text = encode(document)
    except ValueError:
        text = encode(_without_odd_numbers(document))
    if not text.isascii():
        text = json.dumps(json.loads(replace_halves(text)))
    return text.replace("\x7f", "\\u007f")


def _without_odd_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_odd_numbers(key): _without_odd_numbers(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_odd_numbers(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_sent(value: BaseModel, *, without: set[str] | None = None) -> dict[str, Any]:
    """A result, or the params of a question, as the server sent it, without these fields."""
    # Not in pydantic's JSON mode, which fails on half of a character (a surrogate).
    return value.model_dump(by_alias=True, exclude_unset=True, exclude=without)


def read_result(result: CallToolResult) -> str:
    """A result in words, as the server wrote them. They are foreign text."""
    lines = [_told(block) for block in result.content]
    if not lines and result.structured_content is not None:
        lines.append(json.dumps(result.structured_content, indent=2, ensure_ascii=False))
    return "\n".join(lines)


def _told(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            size = len(block.data) * 3 // 4
            return f"[{block.type}, {one_line(block.mime_type, 60)}, {size} bytes: --json has it]"
        case "resource_link":
            return f"[{one_line(block.uri)}]"
        case _:
            return f"[{block.type}: --json has it]"


def _write(stream: Any, text: str) -> None:
    """Write and flush. A text that the stream's encoding lacks is written with ``?``."""
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except OSError:
        _give_up(stream)
        raise


def fail_to_write(error: OSError, output: Output) -> Exit:
    """End because stdout cannot be written. A reader that has gone, as with ``| head``, is no error."""
    _give_up(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        with suppress(OSError):  # stderr is closed as well
            output.fail(CommandError(Exit.UNEXPECTED, f"The output could not be written: {error}"))
    return Exit.UNEXPECTED


def _give_up(stream: Any) -> None:
    """Discard the text that a stream still holds.

    The interpreter would write it once more at its end, fail, and end with an exit code of its own.
    """
    with suppress(OSError):  # it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
