"""Where only a lease tells that a process lives, a process whose lease has run out sends and asks nothing.

It goes on once the journal has confirmed that the call is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import Inbox, JournalError, MemoryJournal, TaskRecord, TasksClient
from mcp_tasks_client.aio.uncut import run_to_its_end
from mcp_tasks_client.engine.environment import LEASE_S, Environment
from mcp_tasks_client.journal.base import Instruction, Lease, Taken
from mcp_tasks_client.machine.record import Scope
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.sessions.base import BeforeSend, Snapshot, TaskRef, ToolCall
from mcp_tasks_client.testing import completed, input_required, text_result, working
from tests.campaigns.shared_journal import ProcessJournal
from tests.campaigns.virtual_time import ProcessClock, VirtualProcess, WorldClock
from tests.scripted_session import ScriptedSession

from .world import ASK, YES

pytestmark = pytest.mark.anyio

TASK: Final = "task-0123456789abcdef"
HINT_S: Final = 5.0
RUNNING: Final = working(TASK, poll_interval_ms=int(HINT_S * 1000))
ASKING: Final = input_required(TASK, {"q": ASK}, poll_interval_ms=int(HINT_S * 1000))
DONE: Final = completed(TASK, text_result("done"))


class HostJournal(ProcessJournal):
    """The journal as one host reaches it: cut off, full, or with replies that are lost.

    Attributes:
        cut: Nothing gets through, and each request fails after so many seconds.
        full: Nothing is written.
        loses: The replies to renewals are lost, after they were committed.
        sleeps: Suspends the host when a read has come back, before it knows of that.
        has_clock: Whether hosts share the journal, and go by its clock.
    """

    def __init__(self, records: MemoryJournal, clock: ProcessClock, *, has_clock: bool) -> None:
        super().__init__(records, clock, trouble=self._is_full, hears_late=True)
        self.cut: float | None = None
        self.full = self.loses = False
        self.has_clock = has_clock
        self.sleeps: Callable[[], None] = lambda: None

    @property
    def clock(self) -> Callable[[], float] | None:
        return self._clock.time if self.has_clock else None

    def _is_full(self) -> JournalError | None:
        return JournalError("The disk is full.") if self.full or self.cut is not None else None

    async def _read(self) -> None:
        await super()._read()
        if self.cut is not None:
            await self._clock.sleep(self.cut)
            raise JournalError("The database cannot be reached.")

    async def renew(self, lease: Lease) -> bool:
        kept = await super().renew(lease)
        if self.loses:
            raise JournalError("The reply was lost.")
        return kept

    async def by_id(self, record_id: str) -> TaskRecord | None:
        record = await super().by_id(record_id)
        await self._come_back()
        return record

    async def owners(self, *names: str) -> dict[str, Lease | None]:
        owners = await super().owners(*names)
        await self._come_back()
        return owners

    async def instructions(self, record_id: str) -> list[Instruction]:
        found = await super().instructions(record_id)
        await self._come_back()
        return found

    async def take_pending(
        self,
        scope: Scope,
        owner: str,
        gone: Collection[str] = (),
        *,
        application: str | None = None,
        limit: int | None = None,
        leave: Collection[str] = (),
    ) -> list[Taken]:
        taken = await super().take_pending(
            scope, owner, gone, application=application, limit=limit, leave=leave
        )
        await self._come_back()
        return taken

    async def _come_back(self) -> None:
        self.sleeps()
        await self._clock.pass_on()

    async def renew_now_and_then(self) -> None:
        while True:
            await self._clock.sleep(1.0)
            for source in list(self._sources):
                lease = source.due()
                if lease is not None:
                    with suppress(JournalError):  # the journal tries again
                        source.renewed(lease, had_lapsed=not await self.renew(lease))


class Server(ScriptedSession):
    """A session whose host stands still while it is suspended."""

    def __init__(self, host_clock: ProcessClock, **script: Any) -> None:
        script.setdefault("gets", {TASK: [RUNNING]})
        super().__init__(clock=host_clock, calls=[RUNNING], **script)
        self.turn = anyio.Event()  # of polls, under a cap of requests at once
        self.turn.set()

    async def get(self, ref: TaskRef) -> Snapshot:
        await self.turn.wait()
        if ref.before_send is not None:
            await ref.before_send()
        await self._arrive()
        return await super().get(ref)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> str | None:
        await self._arrive()
        return await super().update(ref, answers)

    async def call(self, call: ToolCall, before_send: BeforeSend) -> Any:
        async def before() -> None:
            await before_send()
            await self._arrive()

        return await super().call(call, before)

    async def _arrive(self) -> None:
        assert isinstance(self.clock, ProcessClock)
        assert self.clock.awake.is_set(), "a suspended process sends nothing"


class Host:
    """A process on a host of its own, with one client and the persons before it."""

    def __init__(self, world: World, number: int, *, has_clock: bool, **script: Any) -> None:
        self.clock = ProcessClock(world.clock)
        self.journal = HostJournal(world.records, self.clock, has_clock=has_clock)
        self.server = Server(self.clock, **script)
        self.asked: list[float] = []
        self.withdrawn: list[float] = []
        self.answers = anyio.Event()
        self.ended = False

        async def ask(context: Any, params: Any) -> ElicitResult:
            self.asked.append(world.clock.now)
            try:
                await self.answers.wait()
            except anyio.get_cancelled_exc_class():
                self.withdrawn.append(world.clock.now)
                raise
            return YES

        self.client = TasksClient(
            self.server,
            journal=self.journal,
            elicitation=ask,
            poll=PollPolicy(jitter=0.0),
            environment=Environment(
                clock=self.clock,
                jitter=lambda: 0.0,
                process=VirtualProcess.numbered(number, lambda pid: None),
            ),
        )

    def polls(self, *, since: float = 0.0) -> list[float]:
        return [sent.at for sent in self.server.log("tasks/get") if sent.at > since]


class World:
    """Hosts over one journal, in virtual time."""

    def __init__(self, *, has_clock: bool = True) -> None:
        self.clock = WorldClock()
        self.records = MemoryJournal()
        self._has_clock = has_clock
        self._stack = AsyncExitStack()
        self._hosts = 0

    async def __aenter__(self) -> World:
        await self._stack.__aenter__()
        await self._stack.enter_async_context(self.records)
        self.tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self.tasks.cancel_scope.cancel()
        await self._stack.__aexit__(*raised)

    async def host(self, **script: Any) -> Host:
        self._hosts += 1
        host = Host(self, self._hosts, has_clock=self._has_clock, **script)
        await host.client.__aenter__()

        async def leave(*raised: Any) -> None:
            host.clock.go_on()
            host.journal.cut, host.journal.full, host.journal.loses = None, False, False
            await run_to_its_end(host.client.__aexit__, None, None, None)

        self._stack.push_async_exit(leave)
        self.tasks.start_soon(host.journal.renew_now_and_then)
        return host

    async def passes(self, seconds: float) -> None:
        with anyio.fail_after(30):
            await self.clock.pass_to(self.clock.now + seconds, anyio.Event())


@pytest.mark.parametrize("outage_s", [0.5, LEASE_S * 2], ids=["told at once", "told after two leases"])
async def test_a_host_that_is_cut_off_polls_until_its_lease_runs_out_and_goes_on_when_it_is_back(
    outage_s: float,
) -> None:
    async with World() as world:
        host = await world.host()
        await host.client.start_tool("tool")
        await world.passes(20)
        host.journal.cut, cut_at = outage_s, world.clock.now
        await world.passes(300)
        late = host.polls(since=cut_at)
        assert late, "a lease that lasts needs no journal"
        assert late[-1] <= cut_at + LEASE_S
        host.journal.cut, back_at = None, world.clock.now
        await world.passes(120)
        assert len(host.polls(since=back_at)) >= 10


@pytest.mark.parametrize("outage_s", [0.5, LEASE_S * 2], ids=["told at once", "told after two leases"])
async def test_of_two_hosts_that_were_parted_one_polls(outage_s: float) -> None:
    async with World() as world:
        first, second = await world.host(), await world.host()
        handle = await first.client.start_tool("tool")
        await world.passes(20)
        first.journal.cut = outage_s
        await world.passes(LEASE_S + 1)
        (taken,) = await second.client.resume()
        taken_at = world.clock.now
        await world.passes(200)
        first.journal.cut = None
        await world.passes(200)
        assert first.polls(since=taken_at) == []
        assert len(second.polls(since=taken_at)) >= 390 / HINT_S
        assert not handle.done
        second.server.gets[TASK] = [DONE]
        await world.passes(20)
        assert taken.done


@pytest.mark.parametrize("hint_s", [HINT_S, 300.0], ids=["a poll waits", "no poll is due"])
async def test_a_renewal_whose_reply_was_lost_is_not_taken_for_one_that_kept_the_lease(hint_s: float) -> None:
    """The journal finds in the repetition what it has stored itself, and says that the lease was kept."""
    async with World() as world:
        polled = {TASK: [working(TASK, poll_interval_ms=int(hint_s * 1000))]}
        first, second = await world.host(gets=polled), await world.host(gets=polled)
        await first.client.start_tool("tool")
        await world.passes(20)
        first.journal.cut = 0.5
        await world.passes(LEASE_S + 1)
        await second.client.resume()
        first.journal.cut, first.journal.loses = None, True
        await world.passes(2)
        first.journal.loses = False
        taken_at = world.clock.now
        await world.passes(100 + hint_s)
        assert first.polls(since=taken_at) == []
        assert second.polls(since=taken_at)


async def test_a_full_disk_stops_no_polls() -> None:
    """The lease cannot be renewed. The journal can be read, and says that no other process has the call."""
    async with World() as world:
        host = await world.host()
        await host.client.start_tool("tool")
        await world.passes(10)
        host.journal.full, full_at = True, world.clock.now
        await world.passes(200)
        assert len(host.polls(since=full_at)) >= 190 / HINT_S


async def test_one_machine_goes_on_polling_without_its_journal() -> None:
    """No other process goes by a lease there: each sees that this one lives."""
    async with World(has_clock=False) as world:
        host = await world.host()
        await host.client.start_tool("tool")
        await world.passes(10)
        host.journal.cut, cut_at = 0.5, world.clock.now
        await world.passes(200)
        assert len(host.polls(since=cut_at)) >= 190 / HINT_S


async def test_a_journal_without_a_clock_that_holds_the_lease_of_an_unseen_process_is_shared_too() -> None:
    """As in two containers with one file."""
    async with World(has_clock=False) as world:
        first, second = await world.host(), await world.host()
        await second.client.start_tool("tool")
        await first.client.start_tool("tool")
        await first.client.resume()  # looks at the owners
        await world.passes(10)
        first.journal.cut, cut_at = 0.5, world.clock.now
        await world.passes(200)
        assert first.polls(since=cut_at)[-1] <= cut_at + LEASE_S


async def test_a_person_is_asked_no_more_once_the_lease_has_run_out_and_asked_again_when_it_is_back() -> None:
    async with World() as world:
        host = await world.host(gets={TASK: [ASKING]})
        await host.client.start_tool("tool")
        await world.passes(20)
        assert len(host.asked) == 1
        host.journal.cut, cut_at = 0.5, world.clock.now
        await world.passes(100)
        assert [cut_at < at <= cut_at + LEASE_S + 1 for at in host.withdrawn] == [True]
        assert len(host.asked) == 1
        host.journal.cut, back_at = None, world.clock.now
        await world.passes(30)
        assert [at > back_at for at in host.asked] == [False, True]
        host.answers.set()
        await world.passes(10)
        assert len(host.server.log("tasks/update")) == 1
        assert len(host.asked) == 2


async def test_of_two_persons_at_hosts_that_were_parted_the_second_is_asked_after_the_first_was_not() -> None:
    async with World() as world:
        first, second = await world.host(gets={TASK: [ASKING]}), await world.host(gets={TASK: [ASKING]})
        await first.client.start_tool("tool")
        await world.passes(20)
        first.journal.cut = 0.5
        await world.passes(LEASE_S + 1)
        await second.client.resume()
        await world.passes(30)
        assert len(first.asked) == len(first.withdrawn) == len(second.asked) == 1
        assert first.withdrawn < second.asked
        first.answers.set()
        first.journal.cut, back_at = None, world.clock.now
        await world.passes(60)
        assert len(first.asked) == 1
        assert first.polls(since=back_at) == []
        assert first.server.log("tasks/update") == []


async def test_a_standing_question_is_not_withdrawn_while_the_lease_is_renewed() -> None:
    async with World() as world:
        host = await world.host(gets={TASK: [ASKING]})
        await host.client.start_tool("tool")
        await world.passes(10 * LEASE_S)
        assert len(host.asked) == 1
        assert host.withdrawn == []


@pytest.mark.parametrize("point", ["between two polls", "while the journal is asked"])
async def test_a_suspended_host_polls_nothing_that_another_has_taken(point: str) -> None:
    async with World() as world:
        first, second = await world.host(), await world.host()
        await first.client.start_tool("tool")
        await world.passes(20)
        if point == "while the journal is asked":
            first.journal.cut = 0.5
            await world.passes(LEASE_S - 2)
            first.journal.cut = None

            def sleep() -> None:
                first.journal.sleeps = lambda: None
                first.clock.suspend()

            first.journal.full, first.journal.sleeps = (
                True,
                sleep,
            )  # its lease runs out, and the journal is asked
            await world.passes(LEASE_S)
            first.journal.full = False
            assert not first.clock.awake.is_set()
        else:
            first.clock.suspend()
        await world.passes(LEASE_S * 2)
        assert len(await second.client.resume()) == 1
        taken_at = world.clock.now
        await world.passes(50)
        first.clock.go_on()
        await world.passes(100)
        assert first.polls(since=taken_at) == []
        assert len(second.polls(since=taken_at)) >= 29


@pytest.mark.parametrize("by", ["adopt", "resume"])
@pytest.mark.parametrize("read", ["of the leases", "that takes the records"])
async def test_a_host_that_is_suspended_inside_a_look_hands_out_nothing_old(read: str, by: str) -> None:
    async with World() as world:
        maker, first, second = await world.host(), await world.host(), await world.host()
        handle = await maker.client.start_tool("tool")
        maker.server.gets[TASK] = [DONE]
        await world.passes(20)
        assert handle.done
        await maker.client.__aexit__(None, None, None)
        found: list[Any] = []

        def sleep() -> None:
            first.journal.sleeps = lambda: None
            first.clock.suspend()

        def sleep_next() -> None:
            first.journal.sleeps = sleep

        first.journal.sleeps = sleep if read == "of the leases" else sleep_next

        async def look() -> None:
            if by == "resume":
                found.extend(await first.client.resume())
                return
            async for one in first.client.adopt():
                found.append(one)  # noqa: PERF401  # the iteration has no end

        world.tasks.start_soon(look)
        await world.passes(1)
        assert not first.clock.awake.is_set()
        await world.passes(LEASE_S * 3)
        (taken,) = await second.client.resume()
        async with taken.outcome():
            pass
        await world.passes(10)
        first.clock.go_on()
        await world.passes(LEASE_S * 3)
        assert found == []


async def test_what_a_look_brings_late_replaces_nothing_that_is_newer() -> None:
    """The outcome was acknowledged here meanwhile, and is not handed out again."""
    async with World() as world:
        maker, first = await world.host(), await world.host()
        handle = await maker.client.start_tool("tool")
        await maker.client.__aexit__(None, None, None)
        has_taken, comes_back = anyio.Event(), anyio.Event()
        take_pending = first.journal.take_pending

        async def take_slowly(*args: Any, **options: Any) -> list[Taken]:
            taken = await take_pending(*args, **options)
            has_taken.set()
            await comes_back.wait()
            return taken

        first.journal.take_pending = take_slowly  # type: ignore[method-assign]
        found: list[Any] = []

        async def look() -> None:
            found.extend(await first.client.resume())

        world.tasks.start_soon(look)
        await world.passes(1)
        assert has_taken.is_set()
        first.server.gets[TASK] = [DONE]
        attached = await first.client.attach(handle.reference)
        await world.passes(20)
        async with attached.outcome():
            pass
        comes_back.set()
        await world.passes(20)
        assert found == []


async def test_a_suspended_host_gives_its_store_no_end_that_another_has_taken() -> None:
    async with World() as world:
        first, second = await world.host(), await world.host()
        asked, stored = list[float](), list[str]()

        async def fail(record: TaskRecord, outcome: Any) -> None:
            asked.append(world.clock.now)
            raise OSError("The disk of the host is full.")

        async def store(record: TaskRecord, outcome: Any) -> None:
            stored.append(record.status)

        world.tasks.start_soon(first.client.deliver, fail)
        first.server.gets[TASK] = [DONE]
        await first.client.start_tool("tool")
        await world.passes(20)
        assert asked
        first.clock.suspend()
        await world.passes(LEASE_S * 2)
        world.tasks.start_soon(second.client.deliver, store)
        await world.passes(1)
        assert stored == ["completed"]
        asked.clear()
        first.clock.go_on()
        await world.passes(LEASE_S * 3)
        assert (asked, stored) == ([], ["completed"])


async def test_a_host_that_is_suspended_inside_its_store_acknowledges_what_it_has_stored() -> None:
    async with World() as world:
        first, second = await world.host(), await world.host()
        rows, asked = dict[str, str](), list[str]()

        async def store(record: TaskRecord, outcome: Any) -> None:
            asked.append("second")
            rows.setdefault(record.record_id, "second")

        async def be_suspended(record: TaskRecord, outcome: Any) -> None:
            asked.append("first")
            first.clock.suspend()
            await first.clock.pass_on()
            rows.setdefault(record.record_id, "first")

        world.tasks.start_soon(first.client.deliver, be_suspended)
        first.server.gets[TASK] = [DONE]
        await first.client.start_tool("tool", idempotency_key="k")
        await world.passes(20)
        assert asked == ["first"]
        await world.passes(LEASE_S * 2)
        world.tasks.start_soon(second.client.deliver, store)
        await world.passes(1)
        first.clock.go_on()
        await world.passes(LEASE_S * 3)
        assert (asked, list(rows.values())) == (["first", "second"], ["second"])
        (record,) = await second.client.records()
        assert record.delivered_at is not None


@pytest.mark.parametrize("has_clock", [True, False], ids=["hosts", "containers with one file"])
async def test_a_suspended_host_withdraws_what_another_may_have_asked_when_it_goes_on(
    has_clock: bool,
) -> None:
    async with World(has_clock=has_clock) as world:
        first, second = await world.host(), await world.host()
        for host in (first, second):
            asking = input_required(TASK, {"q": ASK}, poll_interval_ms=3_600_000)
            host.server.gets[TASK] = [asking]
        await first.client.start_tool("tool")
        await world.passes(20)
        assert len(first.asked) == 1
        first.clock.suspend()
        await world.passes(LEASE_S * 2)
        await second.client.resume()
        await world.passes(1)
        first.clock.go_on()
        await world.passes(LEASE_S / 2)
        assert len(first.withdrawn) == 1


async def test_a_poll_that_has_waited_for_its_turn_is_confirmed_when_it_is_sent() -> None:
    async with World() as world:
        first, second = await world.host(), await world.host()
        await first.client.start_tool("tool")
        await world.passes(20)
        first.server.turn = anyio.Event()
        await world.passes(2 * HINT_S)
        first.journal.cut = 0.5
        await world.passes(LEASE_S + 1)
        assert len(await second.client.resume()) == 1
        taken_at = world.clock.now
        await world.passes(1)
        first.server.turn.set()
        await world.passes(60)
        assert first.polls(since=taken_at) == []
        assert second.polls(since=taken_at)


async def test_what_a_host_owns_that_has_come_back_is_not_taken_by_one_that_judged_it_before() -> None:
    """The second host reads that the lease of the first has run out, and takes its calls a moment later."""
    async with World() as world:
        first, second = await world.host(), await world.host()
        await first.client.start_tool("tool")
        await world.passes(20)
        first.journal.cut = 0.5
        await world.passes(LEASE_S + 1)

        def sleep() -> None:
            second.journal.sleeps = lambda: None
            second.clock.suspend()

        second.journal.sleeps = sleep
        taken: list[Any] = []

        async def resume() -> None:
            taken.extend(await second.client.resume())

        world.tasks.start_soon(resume)
        await world.passes(0.1)
        assert not second.clock.awake.is_set()
        first.journal.cut, back_at = None, world.clock.now
        await world.passes(LEASE_S / 4)
        second.clock.go_on()
        await world.passes(60)
        assert taken == []
        assert second.polls() == []
        assert len(first.polls(since=back_at)) >= 60 / HINT_S


async def test_a_keyed_call_that_another_host_may_have_given_up_is_not_sent() -> None:
    async with World() as world:
        first = await world.host()

        def sleep() -> None:
            first.journal.sleeps = lambda: None
            first.clock.suspend()

        claim = first.journal.claim

        async def claims(record: TaskRecord) -> TaskRecord:
            standing = await claim(record)
            sleep()
            await first.clock.pass_on()
            return standing

        first.journal.claim = claims  # type: ignore[method-assign]
        second = await world.host()
        outcomes: list[str] = []

        async def call(host: Host, on_unknown: Any) -> None:
            await host.client.call_tool("tool", idempotency_key="k", on_unknown=on_unknown)
            outcomes.append("done")

        for host in (first, second):
            host.server.gets[TASK] = [DONE]
        world.tasks.start_soon(call, first, "raise")
        await world.passes(LEASE_S * 3)
        world.tasks.start_soon(call, second, "resend")
        await world.passes(LEASE_S * 3)
        assert outcomes == ["done"]
        first.clock.go_on()
        await world.passes(LEASE_S * 3)
        assert outcomes == ["done", "done"]
        assert len(first.server.log("tools/call")) + len(second.server.log("tools/call")) == 1


async def test_a_question_that_was_answered_elsewhere_a_moment_ago_is_not_put_to_the_host() -> None:
    """A journal tells of what other processes leave some seconds late. This one never tells."""
    async with World() as world:
        maker, host = await world.host(gets={TASK: [ASKING]}), await world.host(gets={TASK: [ASKING]})
        await maker.client.start_tool("tool")
        await world.passes(20)
        assert len(maker.asked) == 1
        await maker.client.__aexit__(None, None, None)
        assert len(await host.client.resume()) == 1
        await world.passes(0.1)
        assert host.asked == [], "one poll goes before anybody is asked"
        async with Inbox(HostJournal(world.records, ProcessClock(world.clock), has_clock=True)) as inbox:
            (question,) = await inbox.questions()
            await question.answer(YES)
        await world.passes(20)
        assert host.asked == []
        assert [sent.answers.keys() for sent in host.server.log("tasks/update")][:1] == [{"q"}]
