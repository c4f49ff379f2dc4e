"""Stopped anywhere, nothing is left behind and nothing is lost: both event loops, every await.

Each scenario is a whole life of a client. It is run again and again, and stopped at its first
moment, its second, and so on until it ends before it is stopped; see ``_stops`` for what a moment
is. After each stop a second life over the same journal has to bring it to its result.
"""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio

from mcp_tasks_client import (
    OutcomeUnknownError,
    SqliteJournal,
    TaskCancelledError,
    TaskHandle,
    TasksClient,
    TasksClientError,
    WaitTimeoutError,
)

from .loopback import Loopback, loopback
from .one_task import TASK_ID, Doings, InMemory, OneTaskServer, Setup, SetupOverHttp
from .stops import LIMIT_S, TIMEOUT_S, How, QuickClock, Stop, Watch, watched

pytestmark = pytest.mark.anyio

Life: TypeAlias = Callable[[Setup, TasksClient], Awaitable[None]]

KEY: Final = "order-42"
BEYOND: Final = 5
"""Runs in which there was no such moment any more, before there is none. Threads make one run longer
than another."""

FEW: Final = 20
"""Stops of a scenario, at least. A call that is answered at once has the fewest awaits, and 21 stops."""

STRIDE: Final = 16
"""The short form stops at one in so many moments."""

MOST_FAILURES: Final = 5
"""One broken promise breaks at many moments; so many are told."""


# ── lives, and what takes them up again ───────────────────────────────────────────────────────


async def call(setup: Setup, client: TasksClient, **options: Any) -> None:
    setup.done(await client.call_tool("tool", {"a": 1}, timeout=setup.timeout, **options))


async def call_with_updates(setup: Setup, client: TasksClient) -> None:
    async def on_update(task: object) -> None:
        await anyio.lowlevel.checkpoint()

    await call(setup, client, on_update=on_update)


async def call_with_key(setup: Setup, client: TasksClient) -> None:
    await call(setup, client, idempotency_key=KEY)


async def call_without_reply(setup: Setup, client: TasksClient) -> None:
    with pytest.raises(OutcomeUnknownError):
        await call_with_key(setup, client)
    setup.outcomes += 1


async def start(setup: Setup, client: TasksClient) -> None:
    handle = await client.start_tool("tool", {"a": 1})
    assert handle.task_id == TASK_ID
    statuses = [task.status async for task in handle.updates()]
    assert statuses[-1] == "completed"
    setup.done(await handle.result())


async def start_only(setup: Setup, client: TasksClient) -> None:
    await client.start_tool("tool", {"a": 1})


async def start_and_cancel(setup: Setup, client: TasksClient) -> None:
    handle = await client.start_tool("tool", {"a": 1})
    await handle.cancel()
    await result_or_cancelled(setup, handle)


async def resume(setup: Setup, client: TasksClient) -> None:
    for handle in await client.resume():
        setup.done(await handle.result())


async def resume_cancelled(setup: Setup, client: TasksClient) -> None:
    for handle in await client.resume():
        await result_or_cancelled(setup, handle)


async def result_or_cancelled(setup: Setup, handle: TaskHandle) -> None:
    try:
        setup.done(await handle.result())
    except TaskCancelledError:
        assert setup.server.cancels or not setup.server.created
        setup.outcomes += 1


async def attach(setup: Setup, client: TasksClient) -> None:
    setup.server.create()
    handle = await client.attach(TASK_ID)
    setup.done(await handle.result())


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A life, and how a second one takes up what is left of it."""

    name: str
    act: Life
    again: Life
    covers: frozenset[str]
    """What must have been under way at one stop or another, or the test has become empty."""

    hows: Sequence[How]
    every: int = 2
    """1 stops at every moment, 2 at every other one, which is still once for each suspension; more
    is a sample, for what takes long."""

    keeps: bool = False
    """Whether the client may go on with it after a stop, for the handles that it gave out."""

    setup: Callable[[], Setup] = Setup
    before: Life | None = None
    """A life that is not stopped, to have something to resume."""


IN_THE_TASK: Final = frozenset({"tasks/get", "tasks/update", "tools/list", "asking", "journal"})
ALL: Final = IN_THE_TASK | {"tools/call"}
UNTIMED: Final = tuple(how for how in How if how is not How.TIMEOUT)

SCENARIOS: Final = [
    Scenario(
        name="call",
        act=call,
        again=resume,
        covers=ALL,
        hows=(How.BLOCK, How.CALL, How.AT_ONCE, How.NATIVE_BLOCK, How.TIMEOUT),
    ),
    Scenario(name="call with on_update", act=call_with_updates, again=resume, covers=ALL, hows=(How.CALL,)),
    Scenario(
        name="call with a key",
        act=call_with_key,
        again=call_with_key,
        covers=ALL,
        hows=(How.BLOCK, How.AT_ONCE, How.NATIVE_CALL),
        every=1,
    ),
    Scenario(
        name="rounds before the task",
        act=call_with_key,
        again=call_with_key,
        covers=ALL,
        hows=(How.BLOCK, How.CALL, How.AT_ONCE, How.TIMEOUT),
        setup=partial(Setup, server={"rounds": ["question", "state", "question"]}),
    ),
    Scenario(
        name="a result at once",
        act=call_with_key,
        again=call_with_key,
        covers=frozenset({"tools/call", "tools/list", "journal"}),
        hows=tuple(How),
        every=1,
        setup=partial(Setup, server={"at_once": True}),
    ),
    Scenario(
        name="abandoned means cancelled",
        act=call,
        again=resume_cancelled,
        covers=ALL,
        hows=(How.BLOCK, How.NATIVE_CALL, How.TIMEOUT),
        setup=partial(Setup, on_abandon="cancel"),
    ),
    Scenario(
        name="start and follow",
        act=start,
        again=resume,
        covers=ALL,
        hows=(How.BLOCK, How.AT_ONCE),
        keeps=True,
    ),
    Scenario(
        name="start and cancel",
        act=start_and_cancel,
        again=resume_cancelled,
        covers=frozenset({"tools/call", "tasks/cancel", "tasks/get", "journal"}),
        hows=UNTIMED,
        every=1,
        keeps=True,
    ),
    Scenario(
        name="resume",
        before=start_only,
        act=resume,
        again=resume,
        covers=IN_THE_TASK,
        hows=(How.BLOCK, How.CALL),
        keeps=True,
    ),
    Scenario(
        name="attach",
        act=attach,
        again=attach,
        covers=IN_THE_TASK - {"tools/list"},
        hows=(How.BLOCK, How.AT_ONCE, How.NATIVE_CALL),
        keeps=True,
    ),
]


# ── one run ───────────────────────────────────────────────────────────────────────────────────


async def alone(watch: Watch, life: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Live in a task of its own, which must then have been the last one."""
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(life)
    assert watch.alive == {}, f"these outlived the client: {[*watch.alive.values()]}"


class Run:
    """A scenario in a setup of its own, stopped once and taken up again."""

    def __init__(self, scenario: Scenario, how: How, at: int) -> None:
        self.scenario = scenario
        self.how = how
        self.setup = scenario.setup()
        self.stop = Stop(how, at, self._stopped)

    async def __call__(self) -> Stop:
        try:
            async with self.setup:
                if self.scenario.before is not None:
                    async with self.setup.client() as client:
                        await self.scenario.before(self.setup, client)
                with watched(self.stop.moment) as self.watch:
                    await alone(self.watch, self._first_life)
                    self.setup.doings.frozen = False
                    await self.setup.after_a_client()
                    if not self.setup.outcomes:
                        await alone(self.watch, self._second_life)
                        await self.setup.after_a_client()
                await self.setup.at_the_end()
        except Exception as error:
            error.add_note(f"stop {self.stop.at}, {self.stop.where}; under way {sorted(self.stop.meanwhile)}")
            raise
        return self.stop

    def _stopped(self) -> frozenset[str]:
        """Called at the stop: everybody else stops as well, where nothing is meant to go on."""
        goes_on = self.how is How.AT_ONCE or (self.scenario.keeps and not self.how.whole)
        self.setup.doings.frozen = not goes_on
        return self.setup.doings.now()

    async def _first_life(self) -> None:
        async with self.stop.block(), self.setup.client() as client:
            self.idle = set(self.watch.alive)
            if self.how is How.TIMEOUT:
                await self._timed_out(client)
            else:
                async with self.stop.call():
                    await self.scenario.act(self.setup, client)
            if not self.how.whole and not self.setup.outcomes:
                await self._same_client(client)

    async def _timed_out(self, client: TasksClient) -> None:
        self.setup.timeout = TIMEOUT_S
        try:
            async with self.stop.call():
                await self.scenario.act(self.setup, client)
        except WaitTimeoutError as error:
            assert self.stop.fired
            await self._at_rest()
            if error.handle is not None:
                await self._of_handle(error.handle)
        except TaskCancelledError:
            # The task that was given up ended before the wait for it did.
            assert self.stop.fired
            assert self.setup.server.cancels or not self.setup.server.created
            self.setup.outcomes += 1
        finally:
            self.setup.timeout = None

    async def _of_handle(self, handle: TaskHandle) -> None:
        """What the handle of a time-out is good for: the outcome, unless there never was a call."""
        try:
            await result_or_cancelled(self.setup, handle)
        except TasksClientError:
            if self.setup.server.calls:
                raise

    async def _same_client(self, client: TasksClient) -> None:
        if self.how is How.AT_ONCE:
            await self.scenario.again(self.setup, client)
        await self._at_rest()
        if not self.setup.outcomes:
            await self.scenario.again(self.setup, client)
            await self._at_rest()

    async def _at_rest(self) -> None:
        """Nothing is left but what an open client has at any time, and the handles' work is done."""
        await self.watch.until(lambda: not self.watch.alive.keys() - self.idle)
        self.setup.at_rest()
        self.setup.doings.frozen = False

    async def _second_life(self) -> None:
        async with self.setup.client() as client:
            await self.scenario.again(self.setup, client)


async def stopped_everywhere(
    scenario: Scenario, how: How, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    """Stop at every moment there is, or at one in ``stride``."""
    stops = beyond = 0
    seen: set[str] = set()
    failures: list[str] = []
    for at in itertools.count(1, scenario.every * stride):
        order_of_chance(monkeypatch)
        try:
            stop = await Run(scenario, how, at)()
        except Exception as error:
            failures.append(said(error))
            if len(failures) == MOST_FAILURES:
                break
        else:
            if stop.fired:
                stops += 1
                seen |= stop.meanwhile
            elif (beyond := beyond + 1) == BEYOND or stride > 1:
                break
    gc.collect()  # so that whatever was dropped half-way complains here and not in another test
    assert not failures, "\n".join(failures)
    if stride == 1:
        assert scenario.covers <= seen, f"never stopped: {scenario.covers - seen}"
        assert stops >= FEW


def order_of_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trio runs what is ready in an order of chance; make it the same each time."""
    monkeypatch.setattr(trio._core._run, "_r", random.Random(0))


def said(error: BaseException) -> str:
    """An error in one line, and for a group what is in it."""
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    text = "; ".join(map(said, inner)) or f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return " ".join([text, *getattr(error, "__notes__", ())])


@pytest.fixture
def stride(request: pytest.FixtureRequest) -> int:
    return 1 if request.config.getoption("--long") else STRIDE


def possible(how: How, anyio_backend_name: str) -> None:
    if how.native and anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but that of scopes")


@pytest.mark.parametrize(
    ("scenario", "how"),
    [pytest.param(s, how, id=f"{s.name}-{how.value}") for s in SCENARIOS for how in s.hows],
)
async def test_stopped_at_any_moment_nothing_is_left_and_nothing_is_lost(
    scenario: Scenario, how: How, anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    possible(how, anyio_backend_name)
    await stopped_everywhere(scenario, how, monkeypatch, stride)


@pytest.mark.parametrize("how", [How.BLOCK, How.CALL, How.NATIVE_BLOCK], ids=lambda how: how.value)
async def test_a_reply_that_is_not_waited_for_leaves_an_unknown_outcome_and_nothing_else(
    how: How, anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    possible(how, anyio_backend_name)
    scenario = Scenario(
        name="no reply",
        act=call_without_reply,
        again=call_without_reply,
        covers=frozenset({"tools/call", "journal"}),
        hows=(how,),
        every=1,
        setup=partial(Setup, never_replies=True, call_grace_s=1e-9),
    )
    await stopped_everywhere(scenario, how, monkeypatch, stride)


@pytest.mark.parametrize("how", [How.BLOCK, How.AT_ONCE, How.NATIVE_CALL], ids=lambda how: how.value)
async def test_stopped_at_any_moment_a_journal_file_is_left_in_good_order(
    how: How, anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stride: int
) -> None:
    possible(how, anyio_backend_name)
    endpoints = map("one-task-{}".format, itertools.count())
    async with SqliteJournal(tmp_path / "journal.sqlite3") as journal:
        scenario = Scenario(
            name="in a file",
            act=call_with_key,
            again=call_with_key,
            # The thread of the file makes the moments differ from run to run. Where a stop comes for certain
            # is the affair of the scenarios in memory.
            covers=frozenset({"tools/call"}),
            hows=(how,),
            every=3,
            setup=lambda: Setup(journal=journal, endpoint=next(endpoints)),
        )
        await stopped_everywhere(scenario, how, monkeypatch, stride)


@pytest.mark.parametrize("how", [How.BLOCK, How.NATIVE_BLOCK], ids=lambda how: how.value)
async def test_stopped_while_it_opens_or_closes_a_client_closes_its_journal_and_its_session(
    how: How, anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stride: int
) -> None:
    possible(how, anyio_backend_name)
    before = set(threading.enumerate())
    for at in itertools.count(1, 1 + stride // 4):
        order_of_chance(monkeypatch)
        stop = Stop(how, at)
        session = InMemory(OneTaskServer(QuickClock()), Doings())
        opened = anyio.Event()

        async def life(stop: Stop = stop, session: InMemory = session, opened: anyio.Event = opened) -> None:
            async with stop.block(), TasksClient(session, journal=tmp_path / "journal.sqlite3"):
                opened.set()

        with watched(stop.moment) as watch:
            await alone(watch, life)
        for thread in set(threading.enumerate()) - before:
            if thread.name == "mcp-tasks-journal":
                thread.join(LIMIT_S)
                assert not thread.is_alive(), f"the journal is open; stop {at}, {stop.where}"
        assert session.closed or not opened.is_set(), f"the session is open; stop {at}, {stop.where}"
        if not stop.fired:
            break
    assert at > 5


@pytest.fixture
def served() -> Iterator[Loopback]:
    with loopback() as server:
        yield server


# The generator is httpx's own, over a body that is in memory: there is nothing that it could leave open.
@pytest.mark.filterwarnings("ignore:Async generator 'httpx._content.ByteStream:ResourceWarning")
@pytest.mark.parametrize(
    ("how", "given"),
    [
        pytest.param(How.BLOCK, False, id="block-our own http client"),
        pytest.param(How.CALL, True, id="call-a given http client"),
        pytest.param(How.NATIVE_BLOCK, False, id="native block-our own http client"),
    ],
)
async def test_stopped_at_any_moment_no_connection_is_left(
    how: How,
    given: bool,
    anyio_backend_name: str,
    served: Loopback,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stride: int,
) -> None:
    possible(how, anyio_backend_name)
    # Loading the certificates takes longer than all the rest, for a server that has none.
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    scenario = Scenario(
        name="over http",
        act=call,
        again=resume,
        covers=frozenset({"asking", "journal"}),
        hows=(how,),
        setup=partial(SetupOverHttp, served, given=given),
    )
    await stopped_everywhere(scenario, how, monkeypatch, stride)


@pytest.mark.parametrize("first", [True, False], ids=["the first goes", "the second goes"])
async def test_of_two_who_wait_for_one_call_the_other_is_not_disturbed(
    first: bool, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    """Two callers of one key share one drive; what ends with one of them is only its own waiting."""
    for at in itertools.count(1, stride):
        order_of_chance(monkeypatch)
        stop = Stop(How.CALL, at)
        try:
            with watched(stop.moment) as watch:
                await alone(watch, partial(two_wait, Setup(), stop, first))
        except Exception as error:
            error.add_note(f"stop {at}, {stop.where}")
            raise
        if not stop.fired:
            break
    assert stride > 1 or at > FEW


async def two_wait(setup: Setup, stop: Stop, first: bool) -> None:
    stayed = anyio.Event()
    async with setup.client() as client:

        async def goes() -> None:
            async with stop.call():
                await call_with_key(setup, client)

        async def stays() -> None:
            await call_with_key(setup, client)
            stayed.set()

        async with anyio.create_task_group() as tasks:
            for caller in (goes, stays) if first else (stays, goes):
                tasks.start_soon(caller)
    assert stayed.is_set(), "the other one got nothing"
    await setup.after_a_client()
    await setup.at_the_end()
