"""A list of calls that is written anew as they change: a table in a terminal, else lines."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

import mcp_tasks_client as tasks
from mcp_tasks_client.progress import ROOM_FOR_ECHO, CallLine, Changes, is_animated

from .lines import short_id
from .output import Output, make_console
from .seen import SeenCall, look_at

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["watch_calls"]

_LOOK_S: Final = 1.0
"""Seconds between two looks at the journal."""

_FORGOTTEN: Final = "forgotten"

_REST_FACTOR: Final = 4
"""The least pause after a look, as a multiple of the time that the look took."""


async def watch_calls(
    inbox: tasks.Inbox,
    find: Callable[[], Awaitable[Sequence[SeenCall]]],
    draw: Callable[[Sequence[SeenCall]], Iterable[RenderableType]],
    output: Output,
) -> None:
    """Write calls, and write them again as they change, until the reader of stdout has gone.

    A call that leaves the list is written once more, as it stands then. One that the journal has forgotten is
    in the state ``forgotten``.

    Raises:
        JournalError: The journal could not be read.
        OSError: stdout cannot be written.
    """
    with ExitStack() as opened:
        if output.as_json:
            write = _Documents(output).write
        elif is_animated(sys.stdout):
            write = _Table(draw, opened).write
        else:
            write = _Lines(output).write
        shown: dict[str, SeenCall] = {}
        while not _nobody_reads():
            began = time.monotonic()
            found = {one.record.record_id: one for one in await find()}
            left = await _look_again(inbox, [one for one in shown if one not in found])
            write(found, {one: left.get(one) for one in shown if one not in found})
            shown = found
            await anyio.sleep(max(_LOOK_S, _REST_FACTOR * (time.monotonic() - began)))


async def _look_again(inbox: tasks.Inbox, names: Sequence[str]) -> dict[str, SeenCall]:
    """The calls of these IDs that the journal still has."""
    records = [record for one in names if (record := await inbox.record(one)) is not None]
    return {one.record.record_id: one for one in await look_at(inbox, records)} if records else {}


def _nobody_reads() -> bool:
    """True once the reader of stdout has gone, as with ``| head``. Without news no write would fail."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are told in any case
    return any(event & select.POLLERR for _, event in poll.poll(0))


class _Documents:
    """One JSON object a line: each call at first, and again when anything of it changes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._written: dict[str, Any] = {}

    def write(self, found: dict[str, SeenCall], left: dict[str, SeenCall | None]) -> None:
        """Write the objects that have changed."""
        for name, seen in {**found, **left}.items():
            document = {**self._written[name], "state": _FORGOTTEN} if seen is None else seen.document()
            if self._written.get(name) != document:
                self._output.document(document)
            self._written[name] = document
        for name in left:
            del self._written[name]


class _Lines:
    """A line for each call at first, and for each change of it, no more than one in 10 seconds."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._changes = Changes()
        self._seen: dict[str, SeenCall] = {}
        self._left: dict[str, SeenCall | None] = {}

    def write(self, found: dict[str, SeenCall], left: dict[str, SeenCall | None]) -> None:
        """Write the lines that are due."""
        self._seen |= found
        self._left |= left
        now, at = time.time(), time.monotonic()
        for name in list(self._seen):
            line = self._changes.read(name, partial(self._read, name), now, at)
            if line is not None:
                self._output.text(f"{short_id(name)}  {line}")
                if name in self._left:
                    del self._seen[name], self._left[name]

    def _read(self, name: str, now: float) -> CallLine:
        seen = self._left.get(name, self._seen[name])
        if seen is None:
            return replace(self._seen[name].line(now), state=_FORGOTTEN, note="")
        return seen.line(now)


class _Table:
    """A table that is drawn anew. The last one stays on the terminal."""

    def __init__(
        self, draw: Callable[[Sequence[SeenCall]], Iterable[RenderableType]], opened: ExitStack
    ) -> None:
        from rich.live import Live

        self._draw = draw
        self._console = make_console()
        self._live = opened.enter_context(
            Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        )
        self._console.show_cursor(True)  # a process that is killed would leave the terminal without one

    def write(self, found: dict[str, SeenCall], left: dict[str, SeenCall | None]) -> None:
        """Draw the table."""
        from rich.console import Group
        from rich.constrain import Constrain

        table = Group(*self._draw(list(found.values())))
        self._live.update(Constrain(table, self._console.width - ROOM_FOR_ECHO), refresh=True)
