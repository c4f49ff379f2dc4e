"""How calls get on, shown while a program waits for them: in a terminal, in a notebook, or as lines of a log.

::

    async with show_progress(handle):
        result = await handle.result()

A terminal has a line a call, which goes away with the block. It needs ``rich``. Where that is not installed,
where stderr is no terminal, and under ``NO_COLOR`` and ``TERM=dumb``, each change is a line, at most one in
10 seconds of a call. A notebook has one table for all calls of a block.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from html import escape
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

import anyio

from .aio.own_task import OwnTasks
from .aio.uncut import run_to_its_end
from .estimate import format_span
from .foreign_text import one_line

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from .aio.clock import Clock
    from .estimate import Estimate
    from .handle import TaskHandle
    from .machine.record import TaskRecord
    from .protocol.task import Task
    from .questions.question import Question

__all__ = [
    "ROOM_FOR_ECHO",
    "STYLES",
    "CallLine",
    "Changes",
    "Progress",
    "ReadsLine",
    "is_animated",
    "line_of",
    "note_of",
    "show_progress",
    "state_of",
    "title_of",
]

_LOOK_S: Final = 1.0
"""Seconds between two looks at the calls."""

_QUIET_S: Final = 10.0
"""Seconds between two lines of one call in a log, at least."""

ROOM_FOR_ECHO: Final = 3
"""Columns that stay free on the right. A ``^C`` that the terminal echoes there would begin another line."""

STYLES: Final = {"input_required": "yellow", "outcome_unknown": "red", "failed": "red", "completed": "green"}
"""The colours of states, in a terminal."""


# ── the words ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CallLine:
    """The line of a call, in its parts."""

    title: str
    """The tool, and the label of the call if it has one."""

    state: str
    """The state of the call, in a word."""

    elapsed: str
    """How long it has taken so far, or took."""

    note: str = ""
    """The server's words, or why nothing happens."""

    estimate: str = field(default="", compare=False)
    """The usual duration of such calls; empty if it is unknown."""

    is_over: bool = False
    """True if the call has ended."""

    def cells(self) -> tuple[str, str, str, str]:
        """Title, state, time and note, each safe to show."""
        taking = f"{self.elapsed} · {self.estimate}" if self.estimate else self.elapsed
        return one_line(self.title, 150), one_line(self.state, 20), one_line(taking), one_line(self.note, 500)

    def __str__(self) -> str:
        return "  ".join(cell for cell in self.cells() if cell)


ReadsLine: TypeAlias = Callable[[float], CallLine | None]
"""Gives the line of a call for a time, in seconds since the epoch; ``None`` while there is none to show."""


def line_of(
    record: TaskRecord,
    now: float,
    *,
    questions: Sequence[Question] | None = None,
    is_driven: bool = True,
    estimate: Estimate | None = None,
) -> CallLine:
    """The line of a call.

    Args:
        record: As it stands.
        now: Seconds since the epoch. Lines for the time 0 differ only if more than times has changed.
        questions: That wait for an answer; ``None`` takes those that the record has.
        is_driven: False if no living process has the call.
        estimate: How long calls of the tool take, as :meth:`~mcp_tasks_client.TasksClient.estimate` has it.
    """
    if questions is None:
        questions = _questions_in(record)
    until = record.updated_at if record.finished and now else now
    return CallLine(
        title=title_of(record.tool, record.label),
        state=state_of(record, questions, is_driven=is_driven),
        elapsed=format_span(until - record.created_at),
        note=note_of(record, now, questions, is_driven=is_driven),
        estimate="" if estimate is None or record.finished else estimate.after(record.ran_s(now)).text,
        is_over=record.finished,
    )


def title_of(tool: str | None, label: str | None) -> str:
    """A call by its tool, and its label if it has one. ``None`` is the tool of a task without a known one."""
    shown = one_line(tool or "(task)", 60)
    return shown if label is None else f"{shown}: {one_line(label, 80)}"


def state_of(record: TaskRecord, questions: Sequence[Question], *, is_driven: bool) -> str:
    """The state of a call, in a word. Args are those of :func:`line_of`."""
    if questions and not record.finished:
        return "input_required"
    if record.status == "calling" and not is_driven:
        return "outcome_unknown"
    return one_line(record.status, 20, task_id=record.task_id)


def note_of(record: TaskRecord, now: float, questions: Sequence[Question], *, is_driven: bool) -> str:
    """The note on a call that goes on: its question, its failure, or words of the server.

    Args are those of :func:`line_of`.
    """
    failure = record.last_failure
    if record.finished:
        return ""
    if questions:
        return f"waits for an answer for {format_span(now - questions[0].asked_at)}"
    if failure is not None:
        what = "no room at the server" if record.status == "gathering" else "server not reached"
        said = one_line(failure.message, task_id=record.task_id)
        return f"{what} for {format_span(now - failure.since)}: {said}"
    if not is_driven:
        return "nobody drives it"
    return "" if record.task is None else _words_of_server(record.task)


def _words_of_server(task: Task) -> str:
    """The server's words on a task, after its numbers if it gives some."""
    progress = task.progress or {}
    done, total, message = (progress.get(name) for name in ("progress", "total", "message"))
    words = message if isinstance(message, str) else task.status_message or ""
    count = _write_number(done)
    if count and (whole := _write_number(total)):
        count = f"{count} of {whole}"
    return ": ".join(part for part in (count, one_line(words, task_id=task.task_id)) if part)


def _write_number(number: Any) -> str:
    """A number of a server's; empty if it is none that a person can read."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e15:
        return ""
    return str(number) if isinstance(number, int) else f"{number:.2f}".rstrip("0").rstrip(".")


def _questions_in(record: TaskRecord) -> Sequence[Question]:
    """The questions of a call that wait for an answer, as far as its record knows."""
    from .questions.question import open_questions  # the command shows its help without it

    return () if record.finished else list(open_questions(record, None))


class Changes:
    """The lines that a log gets: one for each change of a call, and no more than one in 10 seconds.

    A change that comes sooner is told when the 10 seconds are over. Of several, the last one is told.
    """

    def __init__(self) -> None:
        self._told: dict[Hashable, tuple[float, CallLine]] = {}

    def read(self, name: Hashable, read: ReadsLine, now: float, at: float) -> CallLine | None:
        """The line to write of a call; ``None`` if there is none to write.

        Args:
            name: Of the call.
            read: Gives its line.
            now: Seconds since the epoch.
            at: Seconds of a clock that never jumps.
        """
        told_at, told = self._told.get(name, (-math.inf, None))
        if at < told_at + _QUIET_S:
            return None
        timeless = read(0.0)
        if timeless is None or timeless == told:
            return None
        self._told[name] = at, timeless
        return read(now)


# ── the block ─────────────────────────────────────────────────────────────────────────────────────


def show_progress(
    *calls: TaskHandle | ReadsLine, stream: IO[str] | None = None, clock: Clock | None = None
) -> Progress:
    """Show how calls get on, for the length of an ``async with`` block.

    Of each call it shows the tool and its label, the state, the time it has taken, and the server's words, or
    since when the server is not reached, or since when a question waits. A terminal shows nothing of a call
    that takes less than half a second, and a log nothing of one that takes less than 10 seconds. Several
    tasks of a program may have a block each: a terminal shows the calls of all of them.

    Args:
        calls: Handles; or functions that give the line of a call, as :func:`line_of` makes one.
        stream: Where it is shown; ``None`` is the notebook, if the program runs in one, or else stderr.
        clock: Of a test; ``None`` is the real one.
    """
    return Progress(calls, stream, clock)


class Progress:
    """Calls whose progress is shown while the block lasts. :func:`show_progress` makes it.

    Its failure is none of the program's: a stream that is closed shows no more, and the block goes on.
    """

    def __init__(
        self, calls: Sequence[TaskHandle | ReadsLine], stream: IO[str] | None, clock: Clock | None
    ) -> None:
        if clock is None:
            from .aio.clock import SystemClock

            clock = SystemClock()
        self._stream, self._clock = stream, clock
        self._reads: list[ReadsLine] = []
        self._surface: _Surface | None = None
        self._tasks = OwnTasks()
        self._unestimated: list[_HandleLine] = []
        for call in calls:
            self.add(call)

    def add(self, call: TaskHandle | ReadsLine) -> None:
        """Show one more call."""
        if callable(call):
            self._reads.append(call)
            return
        line = _HandleLine(call)
        self._reads.append(line)
        self._unestimated.append(line)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to other code, such as a prompt, for the length of the block."""
        surface = self._surface
        if surface is None:
            yield
            return
        surface.pause()
        try:
            yield
        finally:
            surface.go_on()

    async def __aenter__(self) -> Self:
        """Begin to show.

        Raises:
            RuntimeError: It is shown already.
        """
        if self._surface is not None:
            raise RuntimeError("this progress is shown already; make another one")
        self._surface = _choose_surface(self._stream)
        if self._surface is not None:
            self._tasks.start(partial(self._show, self._surface))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End showing. Nothing of ours runs afterwards."""
        self._surface = None
        self._tasks.cancel()
        await run_to_its_end(self._tasks.wait)

    async def _show(self, surface: _Surface) -> None:
        surface.enter(self._reads)
        try:
            await self._clock.sleep(surface.first_look_s)
            while True:
                with anyio.move_on_after(_LOOK_S):  # a journal that is away holds up no look
                    while self._unestimated:
                        line = self._unestimated[0]
                        await line.estimate()
                        self._unestimated.remove(line)
                surface.look(self._reads, self._clock)
                await self._clock.sleep(_LOOK_S)
        except (OSError, ValueError):
            pass  # the stream is closed
        finally:
            with suppress(OSError, ValueError):
                surface.leave(self._reads, self._clock)


class _HandleLine:
    """Gives the line of the call of a handle."""

    def __init__(self, handle: TaskHandle) -> None:
        self._handle = handle
        self._estimate: Estimate | None = None

    async def estimate(self) -> None:
        """Ask the journal once how long such calls take. Without an answer nothing is said of it."""
        from .errors import TasksClientError

        with suppress(TasksClientError):
            self._estimate = await self._handle.estimate()

    def __call__(self, now: float) -> CallLine | None:
        record = self._handle.record
        return None if record is None else line_of(record, now, estimate=self._estimate)


# ── where it is shown ─────────────────────────────────────────────────────────────────────────────


class _Surface(Protocol):
    """Where the calls of a block are shown. Blocks are told apart by their lists."""

    first_look_s: float
    """Seconds before the first look. Of a call that is faster nothing is shown."""

    def enter(self, calls: list[ReadsLine]) -> None:
        """Begin to show the calls of a block."""

    def look(self, calls: list[ReadsLine], clock: Clock) -> None:
        """Show how they stand."""

    def pause(self) -> None:
        """Show nothing, until :meth:`go_on`."""

    def go_on(self) -> None:
        """Show again."""

    def leave(self, calls: list[ReadsLine], clock: Clock) -> None:
        """End showing them."""


def _choose_surface(stream: IO[str] | None) -> _Surface | None:
    """Where to show; ``None`` if there is no place at all."""
    if stream is None and (display := _find_notebook()) is not None:
        return _Notebook(display)
    stream = stream or sys.stderr
    if stream is None:  # a program without a console
        return None
    return _Screen.on(stream) if is_animated(stream) else _Log(stream)


def is_animated(stream: IO[str]) -> bool:
    """True if lines of a stream may be drawn anew: on a terminal that was not asked to keep still."""
    try:
        import rich  # noqa: F401  # is it installed?

        is_terminal = stream.isatty()
    except (ImportError, ValueError):  # rich is not installed, or the stream is closed
        return False
    encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
    return (
        is_terminal
        and encoding.startswith("utf")
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    )


def _find_notebook() -> Callable[..., Any] | None:
    """IPython's ``display`` if the program runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:  # no IPython, or that of a terminal
        return None
    from IPython.display import display  # type: ignore[import-not-found,unused-ignore]  # a notebook has it

    found: Callable[..., Any] = display
    return found


class _Pausable:
    """Counts those that want it quiet."""

    def __init__(self) -> None:
        self._pauses = 0

    def pause(self) -> None:
        """Show nothing."""
        self._pauses += 1

    def go_on(self) -> None:
        """Show again."""
        self._pauses -= 1


class _Log(_Pausable):
    """A line for each change."""

    first_look_s = _QUIET_S

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream
        self._changes = Changes()

    def enter(self, calls: list[ReadsLine]) -> None:
        """Nothing is shown before the first look."""

    def look(self, calls: list[ReadsLine], clock: Clock) -> None:
        """Write the lines that are due."""
        if self._pauses:
            return
        found = (self._changes.read(one, one, clock.time(), clock.monotonic()) for one in calls)
        if lines := "".join(f"{line}\n" for line in found if line is not None):
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            self._stream.write(lines.encode(encoding, "replace").decode(encoding))
            self._stream.flush()

    def leave(self, calls: list[ReadsLine], clock: Clock) -> None:
        """The program itself says how its calls have ended."""


class _Screen:
    """The last lines of a terminal, which all blocks of the process share."""

    first_look_s = 0.5

    _lock: Final = threading.RLock()
    _open: Final[dict[IO[str], _Screen]] = {}

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console

        self._stream = stream
        self._console = Console(
            file=stream,
            force_terminal=True,
            force_interactive=True,
            force_jupyter=False,
            markup=False,
            emoji=False,
            highlight=False,
        )
        self._blocks: list[list[ReadsLine]] = []
        self._live: Live | None = None
        self._pauses = 0
        self._drawn: object = None
        self._drawn_at = -math.inf

    @classmethod
    def on(cls, stream: IO[str]) -> _Screen:
        """The screen of a terminal."""
        stream = getattr(stream, "rich_proxied_file", stream)  # which a screen has put before it
        with cls._lock:
            return cls._open.get(stream) or cls._open.setdefault(stream, cls(stream))

    def enter(self, calls: list[ReadsLine]) -> None:
        """Show more calls."""
        with self._lock:
            self._open[self._stream] = self
            self._blocks.append(calls)

    def look(self, calls: list[ReadsLine], clock: Clock) -> None:
        """Draw the calls of all blocks, once a second at most."""
        with self._lock:
            at = clock.monotonic()
            if self._pauses or at < self._drawn_at + 0.9 * _LOOK_S:
                return
            self._drawn_at = at
            now, size = clock.time(), self._console.size
            read = (read(now) for block in self._blocks for read in block)
            lines = [line for line in read if line is not None]
            if lines and (lines, size) != self._drawn:
                self._drawn = lines, size
                self._draw(lines, size.width, most=max(2, size.height - 2))

    def _draw(self, lines: Sequence[CallLine], width: int, most: int) -> None:
        from rich.console import Group
        from rich.constrain import Constrain
        from rich.text import Text

        shown = lines
        if len(lines) > most:
            shown = sorted(lines, key=lambda line: line.is_over)[: most - 1]
        rows = list(_align([line.cells() for line in shown], longest_title=max(10, width // 3)))
        if len(shown) < len(lines):
            rows.append(Text(f"… and {len(lines) - len(shown)} more"))
        self._begin().update(Constrain(Group(*rows), width - ROOM_FOR_ECHO), refresh=True)

    def _begin(self) -> Live:
        if self._live is None:
            from rich.live import Live

            # No thread of rich's draws. Lines that the program prints meanwhile stand above these.
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=_is_terminal(sys.stdout),
                redirect_stderr=_is_terminal(sys.stderr),
            )
            self._live.start()
            self._console.show_cursor(True)  # a process that is killed would leave the terminal without one
        return self._live

    def pause(self) -> None:
        """Clear the lines, and draw none."""
        with self._lock:
            self._pauses += 1
            self._clear()

    def go_on(self) -> None:
        """Draw again at the next look."""
        with self._lock:
            self._pauses -= 1

    def leave(self, calls: list[ReadsLine], clock: Clock) -> None:
        """Show these calls no longer. Nothing is left on the terminal after the last one."""
        with self._lock:
            self._blocks = [one for one in self._blocks if one is not calls]
            if not self._blocks:
                self._open.pop(self._stream, None)
                self._clear()

    def _clear(self) -> None:
        live, self._live, self._drawn = self._live, None, None
        if live is not None:
            with suppress(OSError, ValueError):  # the stream is closed
                live.stop()


def _align(lines: Sequence[tuple[str, ...]], longest_title: int) -> Iterator[Text]:
    """A line of text each, in columns. The last column is as long as the terminal has room for it."""
    from rich.cells import cell_len
    from rich.text import Text

    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    widths[0] = min(widths[0], longest_title)
    for line in lines:
        row = Text(no_wrap=True, overflow="ellipsis")
        for at, (cell, width) in enumerate(zip(line[:-1], widths[:-1], strict=True)):
            text = Text(cell, STYLES.get(cell, "") if at == 1 else "")
            text.truncate(width, overflow="ellipsis", pad=True)
            row.append_text(text).append("  ")
        yield row.append(line[-1])


def _is_terminal(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


class _Notebook(_Pausable):
    """One output of a cell, in plain HTML."""

    first_look_s = 0.5

    def __init__(self, display: Callable[..., Any]) -> None:
        super().__init__()
        self._display = display
        self._output: Any = None
        self._shown: object = None

    def enter(self, calls: list[ReadsLine]) -> None:
        """Nothing is shown before the first look."""

    def look(self, calls: list[ReadsLine], clock: Clock) -> None:
        """Show the calls, if more than nothing has changed."""
        lines = [line for read in calls if (line := read(clock.time())) is not None]
        if not lines or lines == self._shown:
            return
        self._shown = lines
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line.cells())}</tr>" for line in lines
        )
        shown = {"text/html": f"<table>{rows}</table>", "text/plain": "\n".join(map(str, lines))}
        if self._output is None:
            self._output = self._display(shown, raw=True, display_id=True)
        else:
            self._output.update(shown, raw=True)

    def leave(self, calls: list[ReadsLine], clock: Clock) -> None:
        """Leave how the calls ended in the cell, if they were shown."""
        if self._output is not None:
            self.look(calls, clock)
