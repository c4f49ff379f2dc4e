"""Records the README's tour of ``mcp-tasks`` as two SVG files, one for light pages and one for dark pages.

::

    python docs/recordings/record.py             # into this folder
    python docs/recordings/record.py elsewhere

Two shells run in pseudo-terminals, with the real command at a real FastMCP server, the coffee machine of the
examples. pyte reads their screens, and rich draws them. IDs, times and the port are made the same in each
recording, so that a test can compare the committed one with a new one. Needs the extra ``dev``, and a POSIX
system with bash.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[1]

if not __package__:  # run as a script: Python has put this folder on its path, and not the repository
    sys.path[0] = str(ROOT)

from tests.kit.terminal import Terminal, in_terminal  # noqa: E402  # found by the line above

NAME: Final = "terminal"
COLUMNS: Final = 96
STEP_S: Final = "8"
"""Seconds of each step of the coffee machine: enough for a slow computer to stop a call in the first one."""

SHELL: Final = ("bash", "--norc", "--noprofile", "-i")
PROMPT: Final = r"\[\e[1;34m\]$\[\e[0m\] "

_LIGHT_COLOURS: Final = (
    "#1c2733",
    "#c9483b",
    "#2f7d4f",
    "#8a6100",
    "#3b6fb6",
    "#8b4a9c",
    "#1f7a86",
    "#5b6b7d",
)
_DARK_COLOURS: Final = (
    "#131416",
    "#e0766a",
    "#7cc596",
    "#d9b25f",
    "#6ea3e8",
    "#c792d6",
    "#6fc3cf",
    "#dbe4ee",
)

THEMES: Final = {
    "light": ("#f6f8fa", "#1c2733", _LIGHT_COLOURS),
    "dark": ("#131416", "#dbe4ee", _DARK_COLOURS),
}


# ── the tour ──────────────────────────────────────────────────────────────────────────────────────


def take_tour() -> list[Text]:
    """The README's tour, as two terminals show it: lines with their colours."""
    with (
        TemporaryDirectory(prefix="recording-") as folder,
        _coffee_machine() as url,
        _shells(folder) as shells,
    ):
        first, second = shells
        _enter(first, f"mcp-tasks call {url} brew cups:=2")
        first.see("grinding the beans")
        shown = len(_lines(first))
        _enter(second, f"kill -9 {first.foreground}")
        _enter(first, "mcp-tasks ls")
        first.see("Killed", "nobody drives it")
        (call,) = re.findall(r"^([0-9a-f]{8}) ", first.text, re.MULTILINE)
        _enter(first, f"mcp-tasks wait {call}")
        first.see("1 of 1 >")
        _wait_for_prompt(second)
        killed, asked = len(_lines(second)) - 1, len(_lines(first))
        _enter(second, "mcp-tasks ls")
        _enter(second, f"mcp-tasks answer {call} milk=oat")
        _wait_for_prompt(first)
        _wait_for_prompt(second)
        one, two = _lines(first), _lines(second)
        at_work = one[shown - 1]
        *running, death = [*one[: shown - 1], *at_work.divide([at_work.plain.index("Killed")])]
        lines = [
            *running,
            _rule("another terminal"),
            *two[:killed],
            _rule("the first terminal"),
            *(death, *one[shown:asked]),
            _rule("the other terminal"),
            *two[killed:-1],
            _rule("the first terminal"),
            *one[asked:-1],
        ]
        return [*_made_the_same(lines, url)]


def _enter(shell: Terminal, line: str) -> None:
    """Type a line once the shell waits for one."""
    _wait_for_prompt(shell)
    shell.type(f"{line}\r")
    shell.see(line)


def _wait_for_prompt(shell: Terminal) -> None:
    shell.wait_until(lambda: shell.text.endswith("\n$") or shell.text == "$", wanted="the prompt")


@contextmanager
def _coffee_machine() -> Iterator[str]:
    """The server's address. It has a port of five digits."""
    program = [sys.executable, str(ROOT / "examples" / "demo_server.py")]
    surroundings = {**os.environ, "DEMO_STEP_S": STEP_S}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        program, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=surroundings, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


@contextmanager
def _shells(folder: str) -> Iterator[tuple[Terminal, Terminal]]:
    """Two shells in terminals, which have the command and a journal in common."""
    command = Path(folder, "mcp-tasks")
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mcp_tasks_client "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    more = {"PS1": PROMPT, "HISTFILE": "/dev/null", "TZ": "UTC", "PYTHONPATH": str(ROOT)}
    more["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    journal = Path(folder, "journal.sqlite3")

    def shell() -> AbstractContextManager[Terminal]:
        return in_terminal(journal, columns=COLUMNS, lines=60, program=SHELL, more=more)

    with shell() as first, shell() as second:
        yield first, second


# ── what a terminal shows ─────────────────────────────────────────────────────────────────────────


def _lines(terminal: Terminal) -> list[Text]:
    """What a terminal has shown so far, down to the last line that is not empty."""
    screen = pyte.HistoryScreen(COLUMNS, 1000)
    pyte.ByteStream(screen).feed(terminal.raw)
    lines = [_line(screen.buffer[row]) for row in range(screen.cursor.y + 1)]
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def _line(row: dict[int, pyte.screens.Char]) -> Text:
    line = Text()
    for style, chars in groupby((row[column] for column in range(COLUMNS)), key=_style):
        line.append("".join(char.data for char in chars), style)
    line.rstrip()
    return line


def _style(char: pyte.screens.Char) -> Style:
    colour = {"default": None, "brown": "yellow"}.get(char.fg, char.fg)
    return Style(color=colour, bold=char.bold, underline=char.underscore)


def _rule(name: str) -> Text:
    return Text(f"── {name} ".ljust(COLUMNS, "─"), Style(color="cyan"))


_SPANS: Final = re.compile(r"\b(?:\d+m(?:\d+s)?|\d+s)\b *")
_PIDS: Final = re.compile(r"(?<=kill -9 )\d+")
_IDS: Final = re.compile(r"\b[0-9a-f]{8}\b")


def _made_the_same(lines: Iterable[Text], url: str) -> Iterator[Text]:
    """Lines in which IDs, times and the port are those of every recording."""
    spans = iter(("3s  ", "8s   ", "21s  ", "6s"))
    for line in lines:
        address = re.escape(url.removeprefix("http://"))  # a list leaves the scheme out
        _replace(line, re.compile(f"{address}(?=  )"), "127.0.0.1:8000/mcp ")
        _replace(line, re.compile(address), "127.0.0.1:8000/mcp")
        _replace(line, _PIDS, "24459")
        _replace(line, _IDS, "5c0ffee5")
        _replace(line, _SPANS, *(next(spans) for _ in _SPANS.findall(line.plain)))
        yield line


def _replace(line: Text, wanted: re.Pattern[str], *by: str) -> None:
    """Put other texts in place of those that are wanted, each in its style."""
    for found, new in reversed([*zip(wanted.finditer(line.plain), by, strict=False)]):
        old = line[found.start() : found.end()]
        style = old.spans[0].style if old.spans else ""
        before, after = line[: found.start()], line[found.end() :]
        line.truncate(0)
        line.append_text(before).append(new, style).append_text(after)


# ── the pictures ──────────────────────────────────────────────────────────────────────────────────


def pictures(lines: list[Text]) -> Iterator[tuple[str, str]]:
    """The name of each SVG file, and what it should hold."""
    for name, (background, text, colours) in THEMES.items():
        console = Console(
            record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="standard"
        )
        for line in (*lines, Text()):  # the last line is cut off in some fonts
            console.print(line, no_wrap=True, crop=True)
        rgb = [_rgb(one) for one in colours]
        theme = TerminalTheme(_rgb(background), _rgb(text), rgb, rgb)
        svg = console.export_svg(title="mcp-tasks", theme=theme, unique_id=f"{NAME}-{name}")
        yield f"{NAME}-{name}.svg", _without_other_hosts(svg)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _without_other_hosts(svg: str) -> str:
    """An SVG in the reader's own monospace font: rich would have it loaded from another host."""
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace")
    return re.sub(r"[ \t]+\n", "\n", svg).strip() + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    for file, picture in pictures(take_tour()):
        (target / file).write_text(picture, encoding="utf-8")
