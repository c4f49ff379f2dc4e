"""How calls get on, as a person sees it: in a terminal, in a notebook, and as lines of a log."""

from __future__ import annotations

import asyncio
import io
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tasks_client import Estimate, LastFailure, Scope, TaskFailedError, TaskRecord
from mcp_tasks_client.estimate import format_span
from mcp_tasks_client.machine.states import AskedQuestion, Calling, Completed, Finished, Gathering, Observing
from mcp_tasks_client.progress import CallLine, Changes, line_of, show_progress
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.testing import ManualClock, failed, input_required, working
from tests.engine.world import ASK, DONE, LOST, TASK, World, tasks_of
from tests.kit.terminal import in_terminal
from tests.real_server import RealServer

NOW = 10_000.0
SINCE_3_MIN = LastFailure(message="The connection broke.", count=4, since=NOW - 180)


def record_of(snapshot: dict[str, Any], **fields: Any) -> TaskRecord:
    state = Observing(task=read_task(snapshot), received_at=0.0, due_at=0.0)
    given = {name: fields.pop(name) for name in ("failure", "questions") if name in fields}
    return call_of(replace(state, **given), **fields)


def call_of(state: Any, **fields: Any) -> TaskRecord:
    given: dict[str, Any] = {"record_id": "r", "scope": Scope("s"), "tool": "build", "created_at": NOW - 252}
    return TaskRecord(**{**given, "updated_at": NOW, "state": state, **fields})


def counted(**progress: Any) -> dict[str, Any]:
    return {**working(TASK, status_message="compiling"), "progress": progress}


# ── the words ─────────────────────────────────────────────────────────────────────────────────────

asked = AskedQuestion(key="one", digest="d", asked_at=NOW - 120, request=ASK)

SAID = {
    "working": (record_of(working(TASK)), "build  working  4m12s"),
    "label": (record_of(working(TASK), label="Nightly"), "build: Nightly  working  4m12s"),
    "bare task": (record_of(working(TASK), tool=None), "(task)  working  4m12s"),
    "message": (
        record_of(working(TASK, status_message="compiling")),
        "build  working  4m12s  compiling",
    ),
    "numbers": (record_of(counted(progress=30, total=120)), "build  working  4m12s  30 of 120: compiling"),
    "a number": (record_of(counted(progress=0.50)), "build  working  4m12s  0.5: compiling"),
    "its own message": (
        record_of(counted(progress=1, total=2, message="linking")),
        "build  working  4m12s  1 of 2: linking",
    ),
    "no numbers": (
        record_of(counted(progress=True, total="many", message=7)),
        "build  working  4m12s  compiling",
    ),
    "absurd numbers": (
        record_of(counted(progress=10**5000, total=float("nan"))),
        "build  working  4m12s  compiling",
    ),
    "not reached": (
        record_of(working(TASK, status_message="compiling"), failure=SINCE_3_MIN),
        "build  working  4m12s  server not reached for 3m: The connection broke.",
    ),
    "no room": (
        call_of(Gathering(round=0, request_state=None, questions=(), failure=SINCE_3_MIN)),
        "build  gathering  4m12s  no room at the server for 3m: The connection broke.",
    ),
    "asks": (
        record_of(input_required(TASK, {"one": ASK}), questions=(asked,)),
        "build  input_required  4m12s  waits for an answer for 2m",
    ),
    "answered": (
        record_of(input_required(TASK, {"one": ASK}), questions=(replace(asked, stage="answered"),)),
        "build  input_required  4m12s",
    ),
    "calling": (call_of(Calling()), "build  calling  4m12s"),
    "ended": (
        call_of(Finished(outcome=Completed(result={})), updated_at=NOW - 240),
        "build  completed  12s",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_a_line_says_what_a_call_does_and_why_nothing_happens(name: str) -> None:
    record, said = SAID[name]
    assert str(line_of(record, NOW)) == said


def test_a_call_that_nobody_drives_is_said_to_be_so() -> None:
    assert str(line_of(record_of(working(TASK)), NOW, is_driven=False)).endswith("nobody drives it")
    assert line_of(call_of(Calling()), NOW, is_driven=False).state == "outcome_unknown"


def test_an_estimate_stands_beside_the_time_and_is_no_change() -> None:
    record = record_of(working(TASK))
    line = line_of(record, NOW, estimate=Estimate([100, 300, 400, 420, 600, 800]))
    ran = record.ran_s(NOW)
    said = Estimate([100, 300, 400, 420, 600, 800]).after(ran).text
    assert said
    assert str(line) == f"build  working  4m12s · {said}"
    assert line == line_of(record, NOW)
    assert not line_of(record, NOW, estimate=Estimate([1.0])).estimate


@pytest.mark.parametrize("name", SAID)
def test_lines_for_the_time_0_differ_by_more_than_times(name: str) -> None:
    record, _ = SAID[name]
    assert line_of(record, 0.0) == line_of(replace(record, created_at=1.0), 0.0)


foreign = st.text(
    st.characters(codec="utf-8") | st.sampled_from("\x1b\x07\r\n\u202e\u200b\x9b[]:/"), max_size=80
)


@given(foreign, foreign, foreign, foreign)
def test_whatever_others_write_a_line_is_one_line_of_printable_text(
    tool: str, label: str, message: str, other: str
) -> None:
    snapshot = {**working(TASK, status_message=message), "status": other or "working"}
    for record in (
        record_of(snapshot, tool=tool, label=label),
        record_of({**snapshot, "progress": {"message": other}}, tool=tool, label=label),
        record_of(snapshot, failure=replace(SINCE_3_MIN, message=message), tool=tool),
    ):
        assert str(line_of(record, NOW)).isprintable()
        assert len(str(line_of(record, NOW))) < 1000
    assert str(CallLine(tool, label, message, other)).isprintable()


# ── a log ─────────────────────────────────────────────────────────────────────────────────────────


class Log(io.StringIO):
    """A stream that is no terminal. It notes the time of each line."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.lines: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        self.lines += [(self._clock.monotonic(), line) for line in text.splitlines()]
        return len(text)


def said(world: World, *messages: str) -> None:
    world.server.gets[TASK] = [
        working(TASK, poll_interval_ms=1000, status_message=message) for message in messages
    ]


@pytest.mark.anyio
async def test_a_log_has_a_line_for_each_change_and_no_more_than_one_in_10_seconds() -> None:
    world = World()
    said(world, *(f"step {number}" for number in range(45)))
    log = Log(world.clock)
    async with world.client() as client:
        handle = await client.start_tool("build", label="Nightly")
        async with show_progress(handle, stream=log, clock=world.clock):
            await world.clock.advance(200)
    times = [at for at, _ in log.lines]
    assert times[0] == pytest.approx(10, abs=1)
    assert all(later - sooner >= 10 for sooner, later in pairwise(times))
    assert len(times) == 5, "once there is no change, there is no line"
    assert log.lines[0][1].startswith("build: Nightly  working  10s  step ")
    assert log.lines[-1][1].endswith("  step 44"), "the last change is told, be it late"


@pytest.mark.anyio
async def test_a_log_says_nothing_of_a_call_of_a_few_seconds() -> None:
    world = World(gets={TASK: [working(TASK, poll_interval_ms=8000), DONE]})
    log = Log(world.clock)
    async with world.client() as client:
        handle = await client.start_tool("build")
        async with show_progress(handle, stream=log, clock=world.clock):
            await world.during(handle.result, 9.5)
    assert log.lines == []


@pytest.mark.anyio
async def test_a_log_says_that_a_server_is_not_reached() -> None:
    world = World(gets={TASK: [LOST]})
    log = Log(world.clock)
    async with world.client() as client:
        handle = await client.start_tool("build")
        async with show_progress(handle, stream=log, clock=world.clock):
            await world.clock.advance(3600)
    ((_, line),) = log.lines
    assert re.fullmatch(r"build  working  \d+s  server not reached for \d+s: The connection broke\.", line)


def test_changes_are_told_of_each_call_by_itself() -> None:
    changes, states = Changes(), {"a": "working", "b": "working"}

    def told(name: str, at: float) -> str | None:
        line = changes.read(name, lambda now: CallLine("t", states[name], format_span(now)), 5.0, at)
        return None if line is None else str(line)

    assert told("a", 0.0) == "t  working  5s"
    assert told("b", 3.0) == "t  working  5s"
    states["a"] = "completed"
    assert told("a", 9.9) is None
    assert told("a", 10.0) == "t  completed  5s"
    assert told("b", 99.0) is None


# ── the block ─────────────────────────────────────────────────────────────────────────────────────


class Watched:
    """A call that counts how often it was looked at."""

    def __init__(self, title: str = "build") -> None:
        self.looks = 0
        self.title = title
        self.state = "working"

    def __call__(self, now: float) -> CallLine:
        self.looks += 1
        return CallLine(self.title, self.state, "0s")


@pytest.mark.anyio
@pytest.mark.parametrize("left_by", ["its end", "an error", "a time limit", "cancellation"])
async def test_nothing_of_ours_outlives_the_block_and_errors_come_out_bare(left_by: str) -> None:
    clock, call, outside = ManualClock(), Watched(), ValueError("of the block")

    async def block() -> None:
        async with show_progress(call, stream=Log(clock), clock=clock):
            await clock.advance(30)
            assert call.looks
            if left_by == "an error":
                raise outside
            if left_by != "its end":
                await anyio.sleep_forever()

    if left_by == "an error":
        with pytest.raises(ValueError, match="of the block") as raised:
            await block()
        assert raised.value is outside
    elif left_by == "a time limit":
        with anyio.move_on_after(0.01):
            await block()
    elif left_by == "cancellation":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(block)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    else:
        await block()
    looks = call.looks
    await clock.advance(100)
    assert call.looks == looks


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_cancellation_of_an_asyncio_task_passes() -> None:
    clock, before = ManualClock(), asyncio.all_tasks()

    async def block() -> None:
        async with show_progress(Watched(), stream=Log(clock), clock=clock):
            await asyncio.sleep(3600)

    task = asyncio.ensure_future(block())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before


@pytest.mark.anyio
async def test_the_error_of_a_call_comes_out_of_the_block_as_it_is() -> None:
    world = World(gets={TASK: [failed(TASK, -32050, "no quota")]})
    async with world.client() as client:
        handle = await client.start_tool("build")
        with pytest.raises(TaskFailedError, match="no quota"):
            async with show_progress(handle, stream=Log(world.clock), clock=world.clock):
                await world.during(handle.result, 5)


class Closed(io.StringIO):
    """A stream whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["closed", "broken", "none"])
async def test_a_stream_that_takes_nothing_ends_the_showing_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream: io.StringIO | None = Closed() if kind == "broken" else io.StringIO()
    clock = ManualClock()
    if kind == "none":  # as under pythonw
        monkeypatch.setattr(sys, "stderr", None)
        stream = None
    elif kind == "closed":
        assert stream is not None
        stream.close()
    async with show_progress(Watched(), stream=stream, clock=clock):
        await clock.advance(60)
    assert not caplog.records


@pytest.mark.anyio
async def test_a_progress_is_shown_by_one_block_at_a_time() -> None:
    async with show_progress(stream=io.StringIO()) as progress:
        with pytest.raises(RuntimeError, match="shown already"):
            await progress.__aenter__()
    async with progress:
        pass


# ── a terminal ────────────────────────────────────────────────────────────────────────────────────


class Screen(io.StringIO):
    """A stream that is a terminal, drawn by pyte."""

    def __init__(self, lines: int = 24, columns: int = 80) -> None:
        super().__init__()
        self.raw = ""
        self.drawn = pyte.Screen(columns, lines)
        self.drawn.set_mode(pyte.modes.LNM)  # a terminal makes CR LF of a line break
        self._stream = pyte.Stream(self.drawn)

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.raw += text
        self._stream.feed(text)
        return len(text)

    @property
    def lines(self) -> list[str]:
        return "\n".join(line.rstrip() for line in self.drawn.display).rstrip().splitlines()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return Screen()


@pytest.mark.anyio
async def test_a_terminal_has_a_line_a_call_which_goes_away_with_the_block(screen: Screen) -> None:
    world = tasks_of(2)
    screen.write("$ program\n")
    async with world.client() as client:
        handles = [
            await client.start_tool("build", label=label) for label in ("Nightly", "a much longer one")
        ]
        async with show_progress(*handles, stream=screen, clock=world.clock):
            await world.clock.advance(72)
            assert screen.lines == [
                "$ program",
                "build: Nightly            working  1m12s",
                "build: a much longer one  working  1m12s",
            ]
            assert not screen.drawn.cursor.hidden, "also after a SIGKILL"
    assert screen.lines == ["$ program"]
    assert (screen.drawn.cursor.x, screen.drawn.cursor.y) == (0, 1)
    assert "\x1b[?1049h" not in screen.raw


class OfAbsentJournal:
    """A handle whose journal does not answer, and then does."""

    record = record_of(working(TASK))

    def __init__(self) -> None:
        self.is_there = anyio.Event()

    async def estimate(self) -> Estimate:
        await self.is_there.wait()
        return Estimate([1000.0] * 9)


@pytest.mark.anyio
async def test_a_journal_that_does_not_answer_holds_up_the_estimate_alone(screen: Screen) -> None:
    clock, handle = ManualClock(NOW), OfAbsentJournal()

    async def see(text: str) -> None:
        with anyio.fail_after(20):
            while text not in screen.raw:
                await clock.advance(0.5)
                await anyio.sleep(0.02)

    async with show_progress(handle, stream=screen, clock=clock):  # type: ignore[arg-type]  # as good as one
        await see("build  working  ")
        assert "longer than" not in screen.raw
        handle.is_there.set()
        await see("longer than 9 of 9")


@pytest.mark.anyio
async def test_a_terminal_shows_the_end_of_one_call_while_others_go_on(screen: Screen) -> None:
    world = tasks_of(2)
    async with world.client() as client:
        handles = [await client.start_tool("build") for _ in range(2)]
        async with show_progress(*handles, stream=screen, clock=world.clock):
            world.server.gets["task-0"] = [DONE | {"taskId": "task-0"}]
            await world.clock.advance(30)
            assert [line.split()[1] for line in screen.lines] == ["completed", "working"]


@pytest.mark.anyio
@pytest.mark.parametrize("count", [8, 9, 22])
async def test_the_lines_fit_the_screen(count: int, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "10")
    screen = Screen(lines=10)
    screen.write("$ program\n")
    calls = [Watched(f"call {number}") for number in range(count)]
    clock = ManualClock()
    async with show_progress(*calls, stream=screen, clock=clock):
        await clock.advance(5)
        for call in calls:
            call.state = "completed"
        await clock.advance(5)
        assert screen.lines[0] == "$ program", "nothing above the lines is touched"
        assert screen.lines[1].startswith("call 0")
        assert len(screen.lines) == min(count, 8) + 1
        if count > 8:
            assert screen.lines[-1] == f"… and {count - 7} more"
    assert screen.lines == ["$ program"]


@pytest.mark.anyio
async def test_calls_that_go_on_are_shown_before_those_that_have_ended(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "5")
    world = tasks_of(6)
    async with world.client() as client:
        handles = [await client.start_tool(f"tool{number}") for number in range(6)]
        for number in range(4):
            world.server.gets[f"task-{number}"] = [DONE | {"taskId": f"task-{number}"}]
        async with show_progress(*handles, stream=screen, clock=world.clock):
            await world.clock.advance(5)
            assert [line.split()[0] for line in screen.lines] == ["tool4", "tool5", "…"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nothing_that_a_server_writes_leaves_its_line(screen: Screen) -> None:
    evil = "\x1b[2J\x1b[1;1H\x1b]0;title\x07[red]red[/red] :smile: \u202e\r\nnext\x9b1A" + "long" * 100
    world = World(gets={TASK: [working(TASK, poll_interval_ms=1000, status_message=evil)]})
    screen.write("$ program\n")
    async with world.client() as client:
        handle = await client.start_tool(evil, label=evil[:200])
        async with show_progress(handle, stream=screen, clock=world.clock):
            await world.clock.advance(5)
            first, line = screen.lines
            assert first == "$ program"
            assert line.startswith("[2J [1;1H ]0;title [red]r…  working  ")
            assert line.endswith("s  [2J [1;1H ]0;title [red]red[/red] :…")
            assert screen.drawn.title == ""
    assert screen.lines == ["$ program"]


@pytest.mark.anyio
@pytest.mark.parametrize("still", ["NO_COLOR", "TERM", "no rich", "ASCII"])
async def test_nothing_moves_where_it_must_not(
    still: str, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    match still:
        case "NO_COLOR":
            monkeypatch.setenv("NO_COLOR", "1")
        case "TERM":
            monkeypatch.setenv("TERM", "dumb")
        case "no rich":
            monkeypatch.setitem(sys.modules, "rich", None)
        case "ASCII":
            monkeypatch.setattr(Screen, "encoding", "ascii")
    clock = ManualClock()
    async with show_progress(Watched("b\u00fcild"), stream=screen, clock=clock):
        await clock.advance(60)
    title = "b?ild" if still == "ASCII" else "b\u00fcild"
    assert screen.raw == f"{title}  working  0s\n"


@pytest.mark.anyio
async def test_a_prompt_has_the_terminal_to_itself(screen: Screen) -> None:
    clock, call = ManualClock(), Watched()
    async with show_progress(call, stream=screen, clock=clock) as progress:
        await clock.advance(2)
        assert screen.lines == ["build  working  0s"]
        with progress.paused(), progress.paused():
            assert screen.lines == []
            screen.write("Name? Ada\n")
            call.state = "completed"
            await clock.advance(60)
            assert screen.lines == ["Name? Ada"]
        await clock.advance(1)
        assert screen.lines == ["Name? Ada", "build  completed  0s"]
    assert screen.lines == ["Name? Ada"]
    with progress.paused():
        pass


@pytest.mark.anyio
async def test_the_echo_of_ctrl_c_does_not_begin_another_line(screen: Screen) -> None:
    clock = ManualClock()
    screen.write("$ program\n")
    full = CallLine("build", "working", "0s", "long" * 30)
    async with show_progress(Watched(), lambda _: full, stream=screen, clock=clock):
        await clock.advance(2)
        screen.write("^C")
    assert screen.lines == ["$ program"]


@pytest.mark.anyio
async def test_a_prompt_keeps_a_log_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, call = ManualClock(), Watched()
    log = Log(clock)
    async with show_progress(call, stream=log, clock=clock) as progress:
        with progress.paused():
            await clock.advance(60)
            assert log.lines == []
        await clock.advance(10)
        assert len(log.lines) == 1


@pytest.mark.anyio
async def test_several_tasks_of_a_program_share_the_terminal(screen: Screen) -> None:
    clock, first, second = ManualClock(), Watched("first"), Watched("second")
    threads = threading.active_count()
    async with show_progress(first, stream=screen, clock=clock):
        await clock.advance(2)
        async with show_progress(second, stream=screen, clock=clock) as progress:
            await clock.advance(3)
            assert [line.split()[0] for line in screen.lines] == ["first", "second"]
            assert threading.active_count() == threads, "nothing draws while the program writes"
            with progress.paused():
                await clock.advance(3)
                assert screen.lines == []
            first.looks = second.looks = 0
            await clock.advance(60)
            assert first.looks == second.looks <= 60, "drawn once a second, be there two blocks or a hundred"
        await clock.advance(2)
        assert [line.split()[0] for line in screen.lines] == ["first"]
        async with show_progress(Watched("third"), stream=screen, clock=clock):
            await clock.advance(3)
            assert [line.split()[0] for line in screen.lines] == ["first", "third"]
    assert screen.lines == []


# ── a notebook ────────────────────────────────────────────────────────────────────────────────────


class Notebook:
    """IPython as the kernel of a notebook has it, as far as it is used: one display, updated in place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: object) -> None:
        self.shown: list[dict[str, str]] = []
        self.displays = 0
        package, module = ModuleType("IPython"), ModuleType("IPython.display")
        package.get_ipython = lambda: self  # type: ignore[attr-defined]
        module.display = self.display  # type: ignore[attr-defined]
        self.kernel = kernel
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", module)

    def display(self, shown: dict[str, str], *, raw: bool, display_id: bool) -> Notebook:
        assert raw
        assert display_id
        self.displays += 1
        self.shown.append(shown)
        return self

    def update(self, shown: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(shown)


@pytest.mark.anyio
async def test_a_notebook_has_one_output_for_all_calls_which_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch, kernel=object())
    world = tasks_of(2)
    async with world.client() as client:
        handles = [await client.start_tool("build", label=one) for one in ("<script>&", "b")]
        async with show_progress(*handles, clock=world.clock):
            await world.clock.advance(5)
            for number in range(2):
                world.server.gets[f"task-{number}"] = [DONE | {"taskId": f"task-{number}"}]
            await world.clock.advance(5)
    assert notebook.displays == 1
    assert len(notebook.shown) > 3
    html = notebook.shown[-1]["text/html"]
    assert "<script>" not in html
    cells = [unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", html)]
    assert cells[:2] == ["build: <script>&", "completed"]
    assert cells[4:6] == ["build: b", "completed"]
    assert notebook.shown[-1]["text/plain"].startswith("build: <script>&  completed")


@pytest.mark.anyio
async def test_a_notebook_is_written_to_only_for_a_change_and_for_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notebook, clock, call = Notebook(monkeypatch, kernel=object()), ManualClock(), Watched()
    async with show_progress(call, clock=clock):
        await clock.advance(60)
        assert len(notebook.shown) == 1
        call.state = "completed"
    assert [one["text/plain"] for one in notebook.shown] == ["build  working  0s", "build  completed  0s"]


@pytest.mark.anyio
async def test_the_ipython_of_a_terminal_is_no_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = Notebook(monkeypatch, kernel=None)
    clock = ManualClock()
    async with show_progress(Watched(), clock=clock):
        await clock.advance(12)
    assert notebook.shown == []
    assert capsys.readouterr().err == "build  working  0s\n"


# ── a program ─────────────────────────────────────────────────────────────────────────────────────

PROGRAM = """
import sys, anyio
from mcp_tasks_client import MemoryJournal, TasksClient
from mcp_tasks_client.progress import show_progress

async def rest(client, label):
    handle = await client.start_tool("slow", {"seconds": 3}, label=label)
    async with show_progress(handle):
        await anyio.sleep(1.5)
        print(f"{label} is on its way")
        return await handle.result()

async def main():
    async with TasksClient(sys.argv[1], journal=MemoryJournal()) as client:
        async with anyio.create_task_group() as tasks:
            for label in ("one", "two"):
                tasks.start_soon(rest, client, label)
    print("over")

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the tests have a terminal on POSIX alone")
def test_a_program_prints_above_the_lines_of_all_its_tasks(real_server: RealServer, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    with in_terminal(tmp_path / "j", real_server.url, program=(sys.executable, str(script))) as terminal:
        terminal.see("slow: one  working", "step ", "slow: two  working", "step ")
        terminal.see("is on its way", "is on its way", "slow: one  working", "slow: two  working")
        assert terminal.wait() == 0
        lines = sorted(line for line in terminal.text.splitlines() if line)
        assert lines == ["one is on its way", "over", "two is on its way"]
