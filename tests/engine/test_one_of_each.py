"""One writer, one lease and one timer for a file, however many clients of a process come by whatever way.

The short forms are of 60 clients, ``--long`` of 600 and 800.
"""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp
import pytest

from mcp_tasks_client import MemoryJournal, SqliteJournal, TasksClient, TasksExtension
from mcp_tasks_client.engine import process_lease
from mcp_tasks_client.engine.call_store import CallStore
from mcp_tasks_client.engine.environment import Environment
from mcp_tasks_client.engine.instructions import Instructions
from mcp_tasks_client.engine.live_call import LiveCall, Ours
from mcp_tasks_client.errors import JournalError
from mcp_tasks_client.journal import thread
from mcp_tasks_client.journal.base import Instruction, Journal, Lease
from mcp_tasks_client.journal.guarded import GuardedJournal
from mcp_tasks_client.machine.record import Scope
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.testing import ManualClock, completed, text_result, working
from mcp_tasks_client.testing.samples import record
from tests._requirements import requirement
from tests.journal.files import rows_in_memory, stored, timed
from tests.kit.current_server import DONE, WORKING, CurrentServer, in_memory
from tests.kit.probed_journal import ProbedJournal
from tests.scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio

QUICK = PollPolicy(floor_s=0.001, ceiling_s=0.001, jitter=0.0)
LIMIT_S = 60
TICK_S = 0.02


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--long"))


@pytest.fixture(autouse=True)
def quick_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, linger_s=0.5, tick_s=TICK_S)
    # What other tests of this process have killed may keep theirs.
    monkeypatch.setattr(process_lease, "_LEASES", weakref.WeakValueDictionary())


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mcp-tasks-journal"]


async def nothing_is_left() -> None:
    """Return once this process has no journal open, and holds no lease."""
    gc.collect()
    with anyio.fail_after(20):
        while writers() or thread._THREADS or len(process_lease._LEASES):
            await anyio.sleep(0.01)
            gc.collect()


def quick_session() -> ScriptedSession:
    return ScriptedSession(
        calls=[working("task-1", poll_interval_ms=1)],
        gets={"task-1": [completed("task-1", text_result("x"))]},
    )


# ── clients at once ───────────────────────────────────────────────────────────────────────────


async def dropped_in(journal: Any, failed: list[BaseException]) -> None:
    extension = TasksExtension(journal=journal, endpoint="a-server", poll=QUICK)
    try:
        async with mcp.Client(in_memory(CurrentServer()), extensions=[extension]) as client:
            await client.call_tool("tool")
    except Exception as error:
        failed.append(error)


@requirement("law:13")
async def test_a_process_has_one_writer_for_a_file_and_nothing_of_it_stays(path: Path, is_long: bool) -> None:
    await nothing_is_left()
    failed: list[BaseException] = []
    threads = set[threading.Thread]()

    async def count_threads() -> None:
        while True:
            threads.update(writers())
            await anyio.sleep(0.005)

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as counting:
            counting.start_soon(count_threads)
            async with anyio.create_task_group() as tasks:
                for _ in range(600 if is_long else 60):
                    tasks.start_soon(dropped_in, SqliteJournal(path, keep_delivered_s=0), failed)
            counting.cancel_scope.cancel()
    assert failed == []
    assert len(threads) == 1
    await nothing_is_left()
    assert stored(path) == []


async def test_a_client_for_each_call_is_one_writer(path: Path, is_long: bool) -> None:
    await nothing_is_left()
    failed: list[BaseException] = []

    async def call() -> None:
        try:
            async with TasksClient(quick_session(), journal=path) as client:
                await client.call_tool("tool")
        except Exception as error:
            failed.append(error)

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(800 if is_long else 60):
                tasks.start_soon(call)
    assert failed == []
    assert len(writers()) <= 1
    await nothing_is_left()
    assert stored(path) == []


# ── clients that are dropped ──────────────────────────────────────────────────────────────────


async def test_of_extensions_over_journals_in_memory_nothing_stays() -> None:
    with anyio.fail_after(LIMIT_S):
        for _ in range(20):
            await dropped_in(MemoryJournal(), [])
        await nothing_is_left()


@pytest.mark.parametrize("kept", ["memory", "sqlite"])
async def test_extensions_one_after_another_are_under_one_lease(kept: str, path: Path) -> None:
    await nothing_is_left()
    journal: Journal = MemoryJournal() if kept == "memory" else SqliteJournal(path)
    failed: list[BaseException] = []
    with anyio.fail_after(LIMIT_S):
        async with journal:
            for _ in range(5):
                await dropped_in(journal, failed)
                gc.collect()
            assert len(process_lease._LEASES) == 1
            if isinstance(journal, MemoryJournal):
                assert len(rows_in_memory(journal, "SELECT * FROM leases")) == 1
        assert failed == []
        del journal
        await nothing_is_left()


async def test_a_clock_that_knows_who_has_the_client_does_not_keep_it() -> None:
    """As a host's own parts do, which know each other."""

    class Knowing(ManualClock):
        host: object = None

    await nothing_is_left()
    clock = Knowing()
    clock.host = extension = TasksExtension(
        journal=MemoryJournal(), endpoint="scripted", environment=Environment(clock=clock)
    )
    assert extension.engine.store.registry.unsaved == set()
    dropped = weakref.ref(extension)
    del extension, clock
    with anyio.fail_after(LIMIT_S):
        await nothing_is_left()
    assert dropped() is None


@pytest.mark.parametrize("kept", ["memory", "sqlite"])
async def test_what_listens_is_not_kept_by_the_journal(kept: str, path: Path) -> None:
    """Or the journal would keep what is dropped without a word: a loop that is closed tells nobody."""
    journal: Any = MemoryJournal() if kept == "memory" else SqliteJournal(path)
    guarded, environment = GuardedJournal(journal), Environment()
    async with journal:
        store = CallStore(guarded, PollPolicy(), environment)
        listening = Instructions(store, None, None, environment.clock)  # type: ignore[arg-type]
        listening.join(LiveCall(record(), Ours(0, 0)))
        assert len(journal._medium._listeners) == 1
        dropped = weakref.ref(store)
        del store, listening
        gc.collect()
        assert dropped() is None
        assert journal._medium._listeners == {}


def test_an_extension_owns_its_calls_in_each_event_loop_it_is_used_in(path: Path) -> None:
    """Loops may be used one after another, as by a worker that has one for each of its jobs."""
    extension = TasksExtension(journal=path, endpoint="scripted", poll=QUICK)

    async def call() -> None:
        server = CurrentServer(gets=[WORKING])
        with anyio.fail_after(LIMIT_S):
            async with (
                mcp.Client(in_memory(server), extensions=[extension]) as client,
                TasksClient(quick_session(), journal=path) as other,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(client.call_tool, "tool")
                await server.wait_for("tasks/get", 3)
                await anyio.sleep(3 * TICK_S)  # in which the journal's thread looks who has ended
                assert await other.resume() == []
                server.replies["tasks/get"] = {**DONE, "resultType": "complete"}

    for _ in range(2):
        anyio.run(call)
        for lease in process_lease._LEASES.values():
            lease.ended()  # as the journal's thread asks
            assert not lease.owners


async def test_what_a_client_that_was_dropped_had_left_is_taken_up_by_the_next_one(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An extension has no close, and one of its records may not have been released."""

    class Stuck(SqliteJournal):
        async def save(self, record: Any, *, known: bool = False, heeded: Instruction | None = None) -> None:
            if known and record.owner is None:
                raise JournalError("A page is damaged.")
            await super().save(record, known=known, heeded=heeded)

    caplog.set_level(logging.CRITICAL, "mcp_tasks_client")  # what is logged is kept, with frames
    extension = TasksExtension(journal=Stuck(path), endpoint="scripted")
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(in_memory(CurrentServer(gets=[{}])), extensions=[extension]) as client:
            with anyio.move_on_after(0.2):
                await client.call_tool("tool")
        async with TasksClient(quick_session(), journal=path) as there:
            assert await there.resume() == [], "its owner may come back to it"
            del extension, client
            gc.collect()
            assert len(await there.resume()) == 1


# ── the lease ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("journals", ["one", "two"])
async def test_nobody_owns_a_record_before_the_lease_is_stored_that_another_stores(
    path: Path, journals: str
) -> None:
    """Else another process would take the record of a living client."""

    class Slow(MemoryJournal):
        identity = "the same records"
        renewing, go_on = anyio.Event(), anyio.Event()
        too_soon: list[bool] = []  # noqa: RUF012  # of each record that was claimed; shared on purpose

        async def renew(self, lease: Lease) -> bool:
            self.renewing.set()
            await self.go_on.wait()
            return await super().renew(lease)

        async def claim(self, record: Any) -> Any:
            self.too_soon.append(not self.go_on.is_set())
            return await super().claim(record)

    one = Slow()
    other = one if journals == "one" else Slow()
    with anyio.fail_after(LIMIT_S):
        async with (
            TasksClient(quick_session(), journal=one) as first,
            TasksClient(quick_session(), journal=other) as second,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(partial(first.call_tool, "tool", idempotency_key="k1"))
            await Slow.renewing.wait()
            tasks.start_soon(partial(second.call_tool, "tool", idempotency_key="k2"))
            await anyio.wait_all_tasks_blocked()
            Slow.go_on.set()
    assert Slow.too_soon == [False, False]


async def test_after_a_lease_that_could_not_be_stored_nobody_owns_a_record_without_one() -> None:
    journal, failed = ProbedJournal("renew"), []
    journal.before("renew", anyio.lowlevel.checkpoint)

    async def call(client: TasksClient, key: str) -> None:
        try:
            await client.call_tool("tool", idempotency_key=key)
        except JournalError as error:
            failed.append(error)
            assert await client.records() == []

    with anyio.fail_after(LIMIT_S):
        async with TasksClient(quick_session(), journal=journal) as client:
            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    tasks.start_soon(call, client, f"at once {number}")
            assert (journal.counts["renew"], len(failed), len(set(map(id, failed)))) == (1, 5, 5)
            await call(client, "again")
            assert (journal.counts["renew"], len(failed)) == (2, 6)
            journal.refuses = ()
            await call(client, "and again")
            assert (journal.counts["renew"], len(failed)) == (3, 6)
            (record,) = await journal.records(Scope("scripted"))
            assert record.idempotency_key == "and again"
