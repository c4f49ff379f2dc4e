"""Who is there and who is gone: processes by their numbers, by their leases, and clients within one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest

from mcp_tasks_client import MemoryJournal, SqliteJournal, TasksClient, TaskStatus
from mcp_tasks_client.old.journal.base import Lease
from mcp_tasks_client.old.owners import LEASE_S, Place, Tenure, _here, _started
from mcp_tasks_client.old.testing import ManualClock, ScriptedSession, working

from ._requirements import requirement

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
    here = Place.here()
    lease = Lease("lease", here.host, here.boot, here.pids, pid, _started(pid), NOW, NOW + LEASE_S)
    return replace(lease, **changes)  # type: ignore[arg-type]  # dataclasses.replace takes fields by name


def lives(lease: Lease) -> bool | None:
    return Place.here().lives(lease)


@requirement("law:5")
def test_a_process_of_this_machine_lives_until_it_has_ended() -> None:
    with child() as process:
        lease = lease_of(process.pid)
        assert lives(lease) is True
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert lives(lease) is False, "though nobody has collected it yet"
        process.wait()
        assert lives(lease) is False


@requirement("law:5")
def test_a_process_that_is_stopped_lives() -> None:
    with child() as process:
        process.send_signal(signal.SIGSTOP)
        assert lives(lease_of(process.pid)) is True


@requirement("law:5")
def test_a_number_that_was_given_again_is_another_process() -> None:
    assert lives(lease_of(os.getpid(), started=_started(os.getpid()) - 60)) is False


@requirement("law:5")
def test_not_even_when_it_began_just_before() -> None:
    """As in a container that is started again at once, where the first process is always number 1."""
    before = lease_of(os.getpid(), started=_started(os.getpid()) - 0.5)
    assert lives(before) is (sys.platform != "linux")  # elsewhere only the wall clock tells, less exactly


@requirement("law:5")
def test_a_machine_without_a_network_is_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = iter([0x010000000000 | 1, 0x010000000000 | 2])  # as uuid draws them then
    monkeypatch.setattr(uuid, "getnode", lambda: next(chance))
    assert _here.__wrapped__(1)[0] == _here.__wrapped__(1)[0]


@requirement("law:5")
def test_a_process_stays_the_same_when_the_wall_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    create_time = psutil.Process.create_time
    with child() as process:
        lease = lease_of(process.pid)
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: create_time(self) + 3600)
        assert lives(lease) is (sys.platform == "linux")


@requirement("law:5")
def test_whoever_ran_before_the_machine_was_started_again_is_gone() -> None:
    assert lives(lease_of(os.getpid(), boot="an earlier one")) is False


@requirement("law:5")
@pytest.mark.parametrize("what", ["host", "pids"])
def test_of_another_machine_or_container_nothing_can_be_seen(what: str) -> None:
    assert lives(lease_of(os.getpid(), **{what: "elsewhere"})) is None


@requirement("law:5")
def test_who_cannot_be_seen_is_gone_when_its_lease_has_run_out() -> None:
    lease = lease_of(os.getpid(), host="elsewhere")
    for age_s, gone in ((LEASE_S, False), (LEASE_S + 0.1, True)):
        tenure, _ = Tenure.enter(MemoryJournal())
        assert tenure.judge(ManualClock(NOW + age_s))("lease/1", lease) is gone


@requirement("law:5")
async def test_whoever_looks_on_goes_by_its_own_time() -> None:
    """As in two containers on a laptop that was closed, or when the clock is set."""
    tenure, _ = Tenure.enter(MemoryJournal())
    clock = ManualClock(NOW)
    lease = lease_of(os.getpid(), host="elsewhere")
    assert not tenure.judge(clock)("lease/1", lease)
    await clock.advance(9)
    lease = replace(lease, renewed_at=NOW + 8, expires_at=NOW + 8 + LEASE_S)
    clock.jump(3600)
    assert not tenure.judge(clock)("lease/1", lease)  # it was renewed since we looked
    await clock.advance(LEASE_S - 9)
    assert not tenure.judge(clock)("lease/1", lease)
    await clock.advance(0.1)
    assert tenure.judge(clock)("lease/1", lease)
    lease = replace(lease, renewed_at=clock.time(), expires_at=clock.time() + LEASE_S)
    clock.jump(-7200)
    assert not tenure.judge(clock)("lease/1", lease)
    await clock.advance(LEASE_S + 0.1)
    assert tenure.judge(clock)("lease/1", lease)


@requirement("law:5")
async def test_a_lease_counts_from_when_it_was_read_and_not_from_when_somebody_set_out_to_read_it() -> None:
    """As in a process that is suspended between its clock and the journal."""
    tenure, _ = Tenure.enter(MemoryJournal())
    clock = ManualClock(NOW)
    lease = lease_of(os.getpid(), host="elsewhere")
    judge = tenure.judge(clock)
    await clock.advance(LEASE_S + 10)
    lease = replace(lease, renewed_at=clock.time() - 5, expires_at=clock.time() - 5 + LEASE_S)
    assert not judge("lease/1", lease)
    assert not tenure.judge(clock)("lease/1", lease)
    await clock.advance(LEASE_S + 0.1)
    assert tenure.judge(clock)("lease/1", lease)


@requirement("law:5")
async def test_whoever_looks_seldom_goes_by_the_wall_clock() -> None:
    tenure, _ = Tenure.enter(MemoryJournal())
    clock = ManualClock(NOW)
    lease = lease_of(os.getpid(), host="elsewhere")
    assert not tenure.judge(clock)("lease/1", lease)
    await clock.advance(600)
    assert tenure.judge(clock)("lease/1", replace(lease, renewed_at=NOW + 9, expires_at=NOW + 9 + LEASE_S))


@requirement("law:5")
def test_who_is_seen_to_live_is_not_gone_however_old_its_lease() -> None:
    tenure, _ = Tenure.enter(MemoryJournal())
    with child() as process:
        assert not tenure.judge(ManualClock(NOW + 1e9))("lease/1", lease_of(process.pid))


@requirement("law:5")
def test_whoever_has_no_lease_is_gone() -> None:
    tenure, _ = Tenure.enter(MemoryJournal())
    assert tenure.judge(ManualClock(NOW))("nobody/1", None)


@requirement("law:5")
async def test_a_client_that_has_ended_is_gone_though_its_process_lives() -> None:
    journal = MemoryJournal()
    async with journal:
        tenure, first = Tenure.enter(journal)
        again, second = Tenure.enter(journal)
        assert again is tenure
        lease = lease_of(os.getpid(), lease_id=first.rpartition("/")[0], started=Place.here().started)
        judge = tenure.judge(ManualClock(NOW))
        assert not judge(first, lease)
        tenure.leave(first)
        assert judge(first, lease)
        assert not judge(second, lease)
        tenure.leave(second)


@requirement("law:5")
async def test_a_lease_that_others_have_removed_has_lapsed() -> None:
    clock = ManualClock(NOW)
    async with MemoryJournal() as journal:
        tenure, owner = Tenure.enter(journal)
        await tenure.renew(clock)
        await tenure.renew(clock)
        assert tenure.lapses == 0
        await journal.prune(NOW + 1e9)
        await tenure.renew(clock)
        assert tenure.lapses == 1
        tenure.leave(owner)


async def test_what_is_left_undone_in_a_file_is_known_to_whoever_opens_it_next(tmp_path: Path) -> None:
    path, clock = tmp_path / "journal.sqlite3", ManualClock(NOW)
    async with SqliteJournal(path) as journal:
        tenure, owner = Tenure.enter(journal)
        await tenure.renew(clock)
        tenure.leave(owner)
    another, _ = Tenure.enter(SqliteJournal(tmp_path / "another.sqlite3"))
    assert another.ended == frozenset()
    later, _ = Tenure.enter(SqliteJournal(path))
    assert later.ended == {owner, owner.rpartition("/")[0]}
    later.let_go(later.ended)
    assert later.ended == tenure.ended == frozenset()


class Counting(MemoryJournal):
    """Counts how often the lease is renewed."""

    renewals = 0

    async def renew(self, lease: Lease) -> bool:
        self.renewals += 1
        return await super().renew(lease)


@requirement("law:5")
async def test_a_process_renews_one_lease_however_many_tasks_and_clients_it_has() -> None:
    journal, clock = Counting(), ManualClock()
    calls = [working(f"task-{number}", poll_interval_ms=600_000) for number in range(50)]
    clients = [
        TasksClient(ScriptedSession(clock=clock, calls=calls), journal=journal, principal=str(number))
        for number in range(3)
    ]
    for client in clients:
        client._engine.clock = clock
    async with clients[0], clients[1], clients[2]:
        for client in clients:
            for _ in calls:
                await client.start_tool("tool")
        begun = journal.renewals
        assert begun == 1
        await clock.advance(10 * LEASE_S)
        assert 10 <= journal.renewals - begun <= 31
    assert len(journal._leases) == 0


@requirement("law:5")
async def test_a_call_that_makes_no_task_needs_no_lease() -> None:
    journal = Counting()
    session = ScriptedSession(calls=[{"content": [{"type": "text", "text": "at once"}]}])
    async with TasksClient(session, journal=journal) as client:
        await client.call_tool("tool")
    assert journal.renewals == 0


HOST = """
import sys
import anyio
from mcp_tasks_client import SqliteJournal, TasksClient
from mcp_tasks_client.old.testing import ScriptedSession, working

async def main():
    session = ScriptedSession(calls=[working("task-of-the-first", poll_interval_ms=600_000)])
    async with TasksClient(session, journal=SqliteJournal(sys.argv[1])) as client:
        await client.start_tool("tool")
        print("driving", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@requirement("law:5")
async def test_what_another_process_drives_is_left_to_it_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    session = ScriptedSession(gets={"task-of-the-first": [working("task-of-the-first")]})
    with anyio.fail_after(60):
        async with await anyio.open_process([sys.executable, "-c", HOST, str(path)], stderr=None) as process:
            try:
                assert process.stdout is not None
                assert b"driving" in await process.stdout.receive()
                async with TasksClient(session, journal=SqliteJournal(path)) as client:
                    assert await client.resume() == []
                    process.kill()
                    await process.wait()
                    (handle,) = await client.resume()
                    status: TaskStatus | None = handle.task.status if handle.task else None
                    assert (handle.task_id, status) == ("task-of-the-first", "working")
            finally:
                if process.returncode is None:
                    process.kill()
