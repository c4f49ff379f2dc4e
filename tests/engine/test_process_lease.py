"""Who is there and who is gone: processes by their numbers, by their leases, and clients within one."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import psutil
import pytest

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.engine.environment import LEASE_S, Environment
from mcp_tasks_client.engine.process import Process, _current, _started
from mcp_tasks_client.engine.process_lease import ProcessLease
from mcp_tasks_client.errors import JournalError
from mcp_tasks_client.journal.base import Lease, LeaseSource
from mcp_tasks_client.journal.sqlite.journal import SqliteJournal
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.testing import ManualClock, working
from tests.journal.files import rows_in_memory, timed
from tests.scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000.0


@contextmanager
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def lease_of(pid: int, **changes: object) -> Lease:
    here = Process.current()
    lease = Lease("lease", here.host, here.boot, here.pids, pid, _started(pid), NOW, NOW + LEASE_S)
    return replace(lease, **changes)  # type: ignore[arg-type]  # dataclasses.replace takes fields by name


def sees_alive(lease: Lease) -> bool | None:
    return Process.current().sees_alive(lease)


# ── processes that can be seen ────────────────────────────────────────────────────────────────


def test_a_process_of_this_host_lives_until_it_has_ended_also_while_it_is_stopped() -> None:
    with child() as process:
        lease = lease_of(process.pid)
        process.send_signal(signal.SIGSTOP)
        assert sees_alive(lease) is True
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert sees_alive(lease) is False, "though nobody has collected it yet"
        process.wait()
        assert sees_alive(lease) is False


@pytest.mark.parametrize("ago_s", [60, 0.5], ids=["a minute before", "just before"])
def test_a_number_that_was_given_again_is_another_process(ago_s: float) -> None:
    """As in a container that is started again at once, where the first process is always number 1."""
    before = lease_of(os.getpid(), started=_started(os.getpid()) - ago_s)
    exact = sys.platform == "linux"  # elsewhere only the wall clock tells, less exactly
    assert sees_alive(before) is not (exact or ago_s > 2)


def test_a_host_without_a_network_is_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = iter([0x010000000000 | 1, 0x010000000000 | 2])  # as uuid draws them then
    monkeypatch.setattr(uuid, "getnode", lambda: next(chance))
    assert _current.__wrapped__(os.getpid())[0] == _current.__wrapped__(os.getpid())[0]


def test_a_process_stays_the_same_when_the_wall_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    create_time = psutil.Process.create_time
    with child() as process:
        lease = lease_of(process.pid)
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: create_time(self) + 3600)
        assert sees_alive(lease) is (sys.platform == "linux")


@pytest.mark.parametrize(("what", "alive"), [("boot", False), ("host", None), ("pids", None)])
def test_of_another_host_or_container_nothing_is_seen_and_a_restart_ends_all(
    what: str, alive: bool | None
) -> None:
    assert sees_alive(lease_of(os.getpid(), **{what: "another"})) is alive


# ── judging owners ────────────────────────────────────────────────────────────────────────────


class Owners(MemoryJournal):
    """Knows the owners and leases that it is given, and may take its time to say so."""

    def __init__(self, leases: dict[str, Lease | None]) -> None:
        super().__init__()
        self._given = leases
        self.read: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint
        """What happens between a look and its reply."""

    async def owners(self, *names: str) -> dict[str, Lease | None]:
        found = {name: self._given[name] for name in names}
        await self.read()
        return found


class Shared(MemoryJournal):
    """A journal that hosts share."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._shown = clock.time

    @property
    def clock(self) -> Callable[[], float]:
        return self._shown


async def is_gone(ours: ProcessLease, owner: str, lease: Lease | None) -> bool:
    return owner in await ours.gone(Owners({owner: lease}), owner)


def joined(clock: ManualClock) -> tuple[ProcessLease, str]:
    return ProcessLease.join(MemoryJournal(), Environment(clock=clock))


@pytest.mark.parametrize(("age_s", "gone"), [(LEASE_S, False), (LEASE_S + 0.1, True)])
async def test_who_cannot_be_seen_is_gone_when_its_lease_has_run_out(age_s: float, gone: bool) -> None:
    ours, _ = joined(ManualClock(NOW + age_s))
    assert await is_gone(ours, "lease/1", lease_of(os.getpid(), host="elsewhere")) is gone


async def test_who_is_seen_to_live_is_not_gone_and_who_is_seen_dead_is_gone_at_once() -> None:
    with child() as process:
        lease = lease_of(process.pid)
        later, _ = joined(ManualClock(NOW + 1e9))
        assert not await is_gone(later, "lease/1", lease)
        process.kill()
        process.wait()
    now, _ = joined(ManualClock(NOW))
    assert await is_gone(now, "lease/1", lease)
    assert await is_gone(now, "nobody/1", None), "whoever has no lease is gone as well"


async def test_whoever_looks_on_goes_by_its_own_time() -> None:
    """As in two containers on a laptop that was closed, or when the clock is set."""
    clock = ManualClock(NOW)
    ours, _ = joined(clock)
    lease = lease_of(os.getpid(), host="elsewhere")

    async def gone() -> bool:
        return await is_gone(ours, "lease/1", lease)

    assert not await gone()
    await clock.advance(9)
    lease = replace(lease, renewed_at=NOW + 8, expires_at=NOW + 8 + LEASE_S)
    clock.jump(3600)
    assert not await gone(), "it was renewed since we looked"
    await clock.advance(LEASE_S - 9)
    assert not await gone()
    await clock.advance(0.1)
    assert await gone()
    lease = replace(lease, renewed_at=clock.time(), expires_at=clock.time() + LEASE_S)
    clock.jump(-7200)
    assert not await gone()
    await clock.advance(LEASE_S + 0.1)
    assert await gone()


async def test_a_look_that_took_longer_than_a_renewal_is_repeated() -> None:
    """As in a process that is suspended between the journal's reply and its own next line."""
    clock = ManualClock(NOW)
    ours, _ = joined(clock)
    lease = lease_of(os.getpid(), host="elsewhere")
    journal = Owners({"lease/1": lease})

    async def suspended() -> None:
        journal.read = anyio.lowlevel.checkpoint
        await clock.advance(LEASE_S + 10)
        journal._given["lease/1"] = replace(
            lease, renewed_at=clock.time() - 5, expires_at=clock.time() - 5 + LEASE_S
        )

    journal.read = suspended
    assert await ours.gone(journal, "lease/1") == set()
    await clock.advance(LEASE_S + 0.1)
    assert await ours.gone(journal, "lease/1") == {"lease/1"}


async def test_of_a_journal_that_is_slower_than_renewals_nobody_is_said_to_be_gone() -> None:
    clock = ManualClock(NOW)
    ours, _ = joined(clock)
    journal = Owners({"lease/1": lease_of(os.getpid(), host="elsewhere")})
    looks = 0

    async def slow() -> None:
        nonlocal looks
        looks += 1
        await clock.advance(LEASE_S + 10)

    journal.read = slow
    assert await ours.gone(journal, "lease/1") == set()
    assert looks == 3


@pytest.mark.parametrize("is_shared", [True, False], ids=["hosts share the journal", "one machine"])
async def test_another_boot_of_a_host_of_this_name_is_dead_only_where_no_other_host_can_be_meant(
    is_shared: bool,
) -> None:
    """Machines that were cloned have equal names, as have the first containers of several hosts."""
    clock = ManualClock(NOW)
    journal = Shared(clock) if is_shared else MemoryJournal()
    ours, _ = ProcessLease.join(journal, Environment(clock=clock))
    lease = lease_of(os.getpid(), boot="another")
    assert await is_gone(ours, "lease/1", lease) is not is_shared
    assert ours.is_watched is is_shared
    await clock.advance(LEASE_S + 0.1)
    assert await is_gone(ours, "lease/1", lease)


async def test_a_lease_that_was_extended_counts_whatever_was_seen_before() -> None:
    """As by a database that was down, and lets each lease last its whole time again from its start."""
    clock = ManualClock(NOW)
    ours, _ = ProcessLease.join(Shared(clock), Environment(clock=clock))
    lease = lease_of(os.getpid(), host="elsewhere")
    assert not await is_gone(ours, "lease/1", lease)
    await clock.advance(LEASE_S + 30)
    extended = replace(lease, expires_at=clock.time() + LEASE_S - 1)
    assert not await is_gone(ours, "lease/1", extended)
    await clock.advance(LEASE_S - 1.5)
    assert not await is_gone(ours, "lease/1", extended)
    await clock.advance(1)
    assert await is_gone(ours, "lease/1", extended)


async def test_a_client_that_knows_the_journal_by_another_address_lives_too() -> None:
    """As of two PostgresJournals of one schema, whose addresses differ by a word."""
    clock, journals = ManualClock(NOW), (MemoryJournal(), MemoryJournal())
    (ours, _), (theirs, other) = [ProcessLease.join(one, Environment(clock=clock)) for one in journals]
    assert ours is not theirs
    lease = lease_of(os.getpid(), lease_id=other.rpartition("/")[0], started=Process.current().started)
    assert not await is_gone(ours, other, lease)
    theirs.leave(other)
    assert await is_gone(ours, other, lease)


async def test_whoever_looks_seldom_goes_by_the_wall_clock() -> None:
    clock = ManualClock(NOW)
    ours, _ = joined(clock)
    lease = lease_of(os.getpid(), host="elsewhere")
    assert not await is_gone(ours, "lease/1", lease)
    await clock.advance(600)
    assert await is_gone(ours, "lease/1", replace(lease, renewed_at=NOW + 9, expires_at=NOW + 9 + LEASE_S))


async def test_a_client_that_has_ended_is_gone_though_its_process_lives() -> None:
    journal, environment = MemoryJournal(), Environment(clock=ManualClock(NOW))
    ours, first = ProcessLease.join(journal, environment)
    again, second = ProcessLease.join(journal, environment)
    assert again is ours
    lease = lease_of(os.getpid(), lease_id=first.rpartition("/")[0], started=Process.current().started)
    assert not await is_gone(ours, first, lease)
    assert ours.leave(first) == (first, f"{first}~")
    assert await is_gone(ours, first, lease)
    assert not await is_gone(ours, second, lease)
    assert ours.leave(second) == (second, f"{second}~", lease.lease_id), "the last client gives up the lease"
    newer, _ = ProcessLease.join(journal, environment)
    ours.leave(second)  # once more, as a client that retired before it is closed
    assert ProcessLease.join(journal, environment)[0] is newer


# ── renewing ──────────────────────────────────────────────────────────────────────────────────


class Counting(MemoryJournal):
    """Renews the lease when the test says so, and counts how often it was stored."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = 0
        self.sources: list[LeaseSource] = []
        self.full = False

    async def renew(self, lease: Lease) -> bool:
        if self.full:
            raise JournalError("The disk is full. Make room and try again.")
        self.stored += 1
        return await super().renew(lease)

    def keep_renewing(self, source: LeaseSource) -> None:
        if source not in self.sources:
            self.sources.append(source)

    async def pass_time(self, clock: ManualClock, seconds: int) -> None:
        """Ask once a second whether a lease is due, as the thread of a journal does."""
        for _ in range(seconds):
            await clock.advance(1)
            for source in self.sources:
                names = source.ended()
                if names:
                    await self.release(*names)
                    source.released(names)
                lease = source.due()
                if lease is not None:
                    source.renewed(lease, had_lapsed=not await self.renew(lease))


def client_of(journal: MemoryJournal, clock: ManualClock, **script: Any) -> TasksClient:
    session = ScriptedSession(clock=clock, **script)
    return TasksClient(session, journal=journal, environment=Environment(clock=clock))


async def test_the_journal_renews_one_lease_however_many_clients_and_calls_there_are() -> None:
    journal, clock = Counting(), ManualClock()
    calls = [working(f"task-{number}", poll_interval_ms=600_000) for number in range(20)]
    with anyio.fail_after(20):
        async with (
            client_of(journal, clock, calls=calls) as one,
            client_of(journal, clock, calls=calls) as two,
        ):
            for client in (one, two):
                for _ in calls:
                    await client.start_tool("tool")
            assert journal.stored == 1
            assert len(journal.sources) == 1
            await journal.pass_time(clock, 300)
            assert journal.stored == 1 + 30, "every ten seconds, thrice in the time of a lease"
    assert journal.sources[0].due() is None, "after the last client nothing is renewed"
    assert rows_in_memory(journal, "SELECT * FROM leases") == []


async def test_a_call_that_makes_no_task_needs_no_lease() -> None:
    journal = Counting()
    at_once = {"resultType": "complete", "content": [{"type": "text", "text": "at once"}]}
    async with client_of(journal, ManualClock(), calls=[at_once]) as client:
        await client.call_tool("tool")
    assert journal.stored == 0


async def test_a_lease_that_lapsed_is_noticed_and_stored_anew(caplog: pytest.LogCaptureFixture) -> None:
    journal, clock = Counting(), ManualClock()
    with anyio.fail_after(20):
        async with client_of(journal, clock, calls=[working("task-1"), working("task-2")]) as client:
            await client.start_tool("tool")
            clock.jump(LEASE_S + 1)  # as a host that was suspended
            await client.start_tool("tool")
            assert journal.stored == 2, "before anything else is owned"
            assert "had run out" in caplog.text


async def test_a_host_whose_lease_had_lapsed_polls_no_more_what_another_has_taken() -> None:
    """A poll that shows nothing new is not journaled, so that no fence tells whose the call is."""
    journal, clock, other_clock = Counting(), ManualClock(), ManualClock()

    def host(name: str, its_clock: ManualClock) -> tuple[ScriptedSession, TasksClient]:
        gets = {f"task-{n}": [working(f"task-{n}", poll_interval_ms=1000)] for n in (1, 2)}
        calls = [working("task-1", poll_interval_ms=1000), working("task-2", poll_interval_ms=1000)]
        session = ScriptedSession(clock=its_clock, calls=calls, gets=gets)
        process = replace(Process.current(), host=name)
        environment = Environment(clock=its_clock, process=process, jitter=lambda: 0.0)
        return session, TasksClient(session, journal=journal, environment=environment)

    def polls(session: ScriptedSession, task_id: str) -> int:
        return sum(sent.task_id == task_id for sent in session.log("tasks/get"))

    session, first = host("first", clock)
    _, second = host("second", other_clock)
    with anyio.fail_after(20):
        async with first, second:
            taken = await first.start_tool("tool")
            await clock.advance(3)
            await other_clock.advance(LEASE_S + 4)
            assert [handle.task_id for handle in await second.resume()] == ["task-1"]
            kept = await first.start_tool("tool")
            clock.jump(LEASE_S + 1)  # as a host that was suspended
            await journal.pass_time(clock, 2)  # with a poll before the lease is renewed
            before = polls(session, "task-1")
            await clock.advance(10)
            assert polls(session, "task-1") == before
            assert polls(session, "task-2") >= 9
            assert not taken.done
            assert not kept.done


async def test_a_lease_is_renewed_after_the_wall_clock_was_set_back() -> None:
    """Else its end lies hours ahead, and a process that dies leaves its calls to nobody for so long."""
    journal, clock = Counting(), ManualClock()
    async with client_of(journal, clock, calls=[working("task-1", poll_interval_ms=600_000)]) as client:
        await client.start_tool("tool")
        clock.jump(-7200)
        await journal.pass_time(clock, 1)
        assert journal.stored == 2
        (lease,) = rows_in_memory(journal, "SELECT expires_at FROM leases")
        assert lease[0] <= clock.time() + LEASE_S


class NeverRenewing(Counting):
    """A journal of somebody else, which does not renew what it was asked to."""

    def keep_renewing(self, source: LeaseSource) -> None:
        pass


async def test_a_lease_that_is_about_to_run_out_is_stored_anew_before_anything_is_owned() -> None:
    journal, clock = NeverRenewing(), ManualClock()
    calls = [working(f"task-{number}", poll_interval_ms=600_000) for number in range(3)]
    async with client_of(journal, clock, calls=calls) as client:
        await client.start_tool("tool")
        await clock.advance(LEASE_S / 3)
        await client.start_tool("tool")
        assert journal.stored == 1
        await clock.advance(LEASE_S * 2 / 3 - 1)
        await client.start_tool("tool")
        assert journal.stored == 2


async def test_a_lease_that_has_waited_for_the_journal_is_stored_anew_before_anything_is_owned() -> None:
    clock, waits = ManualClock(), [LEASE_S + 1]

    class Slow(Counting):
        async def renew(self, lease: Lease) -> bool:
            if waits:
                await clock.advance(waits.pop())
            return await super().renew(lease)

    journal = Slow()
    async with client_of(journal, clock, calls=[working("task-1", poll_interval_ms=600_000)]) as client:
        await client.start_tool("tool")
        assert journal.stored == 2
        (lease,) = rows_in_memory(journal, "SELECT expires_at FROM leases")
        assert lease[0] > clock.time()


async def test_nothing_is_owned_without_a_lease() -> None:
    journal, clock = Counting(), ManualClock()
    journal.full = True
    with anyio.fail_after(20):
        async with client_of(journal, clock, calls=[working("task-1")]) as client:
            with pytest.raises(JournalError, match="disk is full"):
                await client.call_tool("tool", idempotency_key="k")
            assert await client.records() == []


async def test_the_sqlite_journal_renews_the_lease_while_the_event_loop_does_nothing(tmp_path: Path) -> None:
    session = ScriptedSession(calls=[working("task-1", poll_interval_ms=600_000)])
    journal = SqliteJournal(tmp_path / "journal.sqlite3")
    environment = Environment(lease_s=0.3)
    with anyio.fail_after(20):
        async with TasksClient(session, journal=journal, environment=environment) as client:
            await client.start_tool("tool")
            (record,) = await client.records()
            assert record.owner is not None
            lease = stored_lease(tmp_path, record.owner)
            while stored_lease(tmp_path, record.owner).renewed_at <= lease.renewed_at:
                await anyio.sleep(0.02)


@pytest.mark.parametrize("between", ["the journal is opened anew", "who enrolled has closed"])
async def test_the_lease_is_renewed_whichever_journal_of_the_process_stored_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    timed(monkeypatch, tick_s=0.02, linger_s=0.0)
    path, environment = tmp_path / "journal.sqlite3", Environment(lease_s=1.0)

    def client() -> TasksClient:
        session = ScriptedSession(calls=[working("task-1", poll_interval_ms=600_000)])
        return TasksClient(session, journal=SqliteJournal(path), environment=environment)

    with anyio.fail_after(20):
        async with client() as stays:  # else the lease would end with the first client
            async with client() as first:
                await first.start_tool("tool")
                if between == "who enrolled has closed":
                    await stays.start_tool("tool")
            if between == "the journal is opened anew":
                journal = stays._engine.store.journal
                await journal.aclose()
                await journal.open()
                await stays.start_tool("tool")
            (record,) = [one for one in await stays.records() if one.owner and "left" not in one.owner]
            assert record.owner is not None
            before = stored_lease(tmp_path, record.owner).renewed_at
            while stored_lease(tmp_path, record.owner).renewed_at < before + environment.lease_s:
                await anyio.sleep(0.02)


def stored_lease(folder: Path, owner: str) -> Lease:
    with closing(sqlite3.connect(folder / "journal.sqlite3")) as connection:
        connection.row_factory = sqlite3.Row
        (row,) = connection.execute("SELECT * FROM leases").fetchall()
    lease = Lease(**{name: row[name] for name in row.keys() if name in Lease.__dataclass_fields__})  # noqa: SIM118
    assert owner.startswith(f"{lease.lease_id}/")
    return lease
