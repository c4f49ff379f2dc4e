"""The pages of the documentation, and the code in them."""

from __future__ import annotations

import ast
import asyncio
import code
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sybil import Document, Example, Sybil
from sybil.parsers.myst import CodeBlockParser

__all__ = [
    "PAGES",
    "PORT",
    "ROOT",
    "TUTORIAL",
    "blocks_of",
    "has_blocks",
    "has_empty_lines",
    "paste",
    "programs",
    "run_blocks",
]

ROOT: Final = Path(__file__).parents[2]
TUTORIAL: Final = ROOT / "docs" / "tutorial.md"
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
LIMIT_S: Final = 30.0

PORT: Final = "http://127.0.0.1:8000/"
"""Where the pages have their server."""


def programs() -> dict[str, str]:
    """The programs of the tutorial, by the names under which the reader saves them."""
    found = {}
    for block in _blocks(TUTORIAL):
        options = block.region.lexemes["options"]
        found[options["caption"]] = str(block.parsed)
    return found


def run_blocks(page: Path, replacements: Mapping[str, str]) -> int:
    """Run the Python blocks of a page in order, as somebody who types them into ``python -m asyncio``.

    Args:
        page: The page.
        replacements: What stands in place of :data:`PORT`, and of a tool at another server.

    Returns:
        How many there are.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = list(_blocks(page))
    for block in blocks:
        source = "\n" * block.line + str(block.parsed)  # so that tracebacks fit
        for old, new in replacements.items():
            source = source.replace(old, new)
        code = compile(source, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(asyncio.wait_for(eval(code, names), LIMIT_S))
        else:
            exec(code, names)
    return len(blocks)


def paste(block: str) -> list[str]:
    """The complaints of ``python -m asyncio`` about a block that is pasted there.

    Before Python 3.13 it takes one line after the other, so that an empty line ends a statement, and a
    statement of several lines needs one behind it.
    """
    console = _Console()
    for line in [*block.splitlines(), ""]:
        console.push(line)
    return console.complaints


def has_empty_lines(block: str) -> bool:
    """Whether a statement of a block has an empty line in it."""
    lines = block.splitlines()
    spans = ((one.lineno, one.end_lineno or one.lineno) for one in ast.parse(block).body)
    return any("" in lines[begin - 1 : end] for begin, end in spans)


class _Console(code.InteractiveConsole):
    """The console of ``python -m asyncio``, which runs nothing here."""

    def __init__(self) -> None:
        super().__init__()
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.complaints: list[str] = []

    def runcode(self, code: Any) -> None:
        pass

    def showsyntaxerror(self, *_: Any, **__: Any) -> None:
        self.complaints.append(str(sys.exc_info()[1]))


def blocks_of(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return [str(block.parsed) for block in _blocks(page)]


def has_blocks(page: Path) -> bool:
    """Whether there is a Python block to run as it stands."""
    return page != TUTORIAL and next(_blocks(page), None) is not None


def _blocks(page: Path) -> Iterator[Example]:
    sybil = Sybil([CodeBlockParser("python", lambda example: None)])
    document: Document = sybil.parse(page)
    yield from document.examples()
