"""The client as the one who runs tasks: asks its host, keeps answers, serves them. The server is a fake."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest
from mcp_types import ElicitResult, ErrorData

from mcp_tasks_client import Journal, JournalError, MemoryJournal, ReceivePolicy, SessionError
from mcp_tasks_client.old.custody import Custody
from mcp_tasks_client.old.errors import CredentialRefusedError, DrivenElsewhereError
from mcp_tasks_client.old.inputs import Callbacks
from mcp_tasks_client.old.journal.base import Judge, Scope, Taken, TaskRecord
from mcp_tasks_client.old.received import completed, owed, received_scope
from mcp_tasks_client.old.receiver import Receiver
from mcp_tasks_client.old.sessions.hearing import Hearing
from mcp_tasks_client.old.sessions.peer import Peer
from mcp_tasks_client.old.states import Cancelled, Completed, Finished, Observing, State
from mcp_tasks_client.old.testing import ManualClock
from mcp_tasks_client.old.wire import JSONObject, RequestId, RpcError, Task

from ._on_disk import OnDisk
from ._requirements import requirement

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 10.0
POLL_S: Final = 0.001
ENDPOINT: Final = "http://server"
RELATED: Final = "io.modelcontextprotocol/related-task"
ADA: Final = ElicitResult(action="accept", content={"name": "Ada"})
ANSWER: Final = {"action": "accept", "content": {"name": "Ada"}}
GONE: Final = RpcError(-32602, "Failed to retrieve task: Task not found", None)


_ids: Final = itertools.count()
"""Of requests. No session gives one twice, whichever process of ours hears it."""


class FakePeer(Peer):
    """A server in one session: it asks, and gets replies."""

    def __init__(self, session_id: str | None = "s") -> None:
        super().__init__(session_id)
        self.listening.set()
        self.receiver: Receiver | None = None
        self.replies: dict[RequestId, list[JSONObject | RpcError]] = {}
        self.news = anyio.Event()
        self.notified: list[tuple[str, JSONObject | None]] = []
        self.requests: list[str] = []
        self.reachable = True
        self.silent = False
        self.pings = True
        self.refuses: list[SessionError] = []
        self.looks = 0
        self.back_at_look = 0

    async def initialize(self, params: JSONObject, timeout_s: float) -> JSONObject:
        raise AssertionError("not here")

    async def request(self, method: str, params: JSONObject, silence_s: float, **_: Any) -> JSONObject:
        self.requests.append(method)
        await anyio.lowlevel.checkpoint()
        if self.silent:
            await anyio.sleep_forever()
        if self.lost or not self.reachable:
            raise SessionError("no such session" if self.lost else "down", retryable=not self.lost)
        if not self.pings:
            raise SessionError("no such method", code=-32601, not_executed=True)
        return {}

    async def take_back(self, request_id: RequestId, timeout_s: float) -> None:
        raise AssertionError("not here")

    async def answer(
        self,
        request_id: RequestId,
        answer: JSONObject | RpcError,
        timeout_s: float,
        task_id: str | None = None,
    ) -> None:
        await anyio.lowlevel.checkpoint()
        if self.refuses:
            self.tell()
            raise self.refuses.pop(0)
        self.replies.setdefault(request_id, []).append(answer)
        self.tell()

    async def look_again(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.looks += 1
        if self.silent:
            await anyio.sleep_forever()
        self.lost = self.looks != self.back_at_look

    async def notify(self, method: str, timeout_s: float, params: JSONObject | None = None) -> None:
        await anyio.lowlevel.checkpoint()
        self.notified.append((method, params))
        self.tell()

    def tell(self) -> None:
        self.news.set()
        self.news = anyio.Event()

    # ── what the server does ──

    def send(self, method: str, params: Any, request_id: RequestId | None = None) -> RequestId:
        request_id = next(_ids) if request_id is None else request_id
        assert self.receiver is not None
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        assert self.receiver.told(self, message)
        return request_id

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(LIMIT_S):
            while not condition():
                await self.news.wait()

    async def reply(self, request_id: RequestId) -> Any:
        await self.until(lambda: self.replies.get(request_id))
        return self.replies[request_id][0]

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.reply(self.send(method, params))

    async def make(self, request_id: RequestId | None = None, **task: Any) -> Any:
        params = {"message": "name?", "requestedSchema": FORM, "task": task}
        reply = await self.reply(self.send("elicitation/create", params, request_id))
        return reply["task"] if isinstance(reply, dict) else reply

    async def about(self, verb: str, task: Any) -> Any:
        return await self.ask(f"tasks/{verb}", taskId=task["taskId"])


FORM: Final = {"type": "object", "properties": {"name": {"type": "string"}}}


class Person:
    """Is asked, and answers when told to; stubborn ones are not to be stopped."""

    def __init__(self, answer: Any = ADA, *, stubborn: bool = False) -> None:
        self.answer = answer
        self.stubborn = stubborn
        self.asked = 0
        self.stopped = 0
        self.news = anyio.Event()
        self.ready = anyio.Event()

    async def __call__(self, context: Any, params: Any) -> Any:
        self.asked += 1
        self.tell()
        try:
            # Of a test that has failed meanwhile, a stubborn one would never hear.
            with anyio.fail_after(LIMIT_S if self.stubborn else None, shield=self.stubborn):
                await self.ready.wait()
        except anyio.get_cancelled_exc_class():
            self.stopped += 1
            self.tell()
            raise
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def tell(self) -> None:
        self.news.set()
        self.news = anyio.Event()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(LIMIT_S):
            while not condition():
                await self.news.wait()


class Desk:
    """A journal that processes share, and a clock."""

    def __init__(self, journal: Journal, clock: ManualClock | None = None) -> None:
        self.journal = journal
        self.clock = clock or ManualClock()

    @asynccontextmanager
    async def process(
        self, person: Person, *peers: FakePeer, policy: ReceivePolicy | None = None
    ) -> AsyncIterator[Receiver]:
        """One of ours; the peers are sessions that it can have."""
        inputs = Callbacks(elicitation=person)
        receiver = Receiver(self.journal, inputs, ENDPOINT, policy=policy, clock=self.clock)
        for peer in peers:
            peer.receiver = receiver
        known = {peer.session_id: peer for peer in peers}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receiver.run, known.__getitem__, attended.append)
            await anyio.wait_all_tasks_blocked()
            yield receiver
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def hearing(self, person: Person, peer: FakePeer) -> AsyncIterator[Hearing]:
        """One of ours, with what hears the server."""
        inputs = Callbacks(elicitation=person)
        peer.receiver = Receiver(self.journal, inputs, ENDPOINT, clock=self.clock)
        hearing = Hearing(inputs, LIMIT_S, lambda: None, peer.receiver)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run, lambda name: peer)
            await anyio.wait_all_tasks_blocked()
            yield hearing
            tasks.cancel_scope.cancel()

    async def records(self) -> list[TaskRecord]:
        return await self.journal.records(received_scope(ENDPOINT, ""))

    async def pass_until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(LIMIT_S):
            while not condition():
                await self.clock.advance(5.0)
                await anyio.sleep(POLL_S)  # for the journal's thread

    async def ended(self, task_id: str) -> None:
        with anyio.fail_after(LIMIT_S):
            while any(record.task_id == task_id and not record.finished for record in await self.records()):
                await anyio.sleep(POLL_S)

    async def told(self) -> None:
        """Until it is journaled that the server has what was said."""
        with anyio.fail_after(LIMIT_S):
            while any(map(owed, await self.records())):
                await anyio.sleep(POLL_S)

    async def owes(self, request_id: RequestId) -> None:
        """Until it is journaled that the server waits for a reply."""
        with anyio.fail_after(LIMIT_S):
            while not any(one == request_id for record in await self.records() for one, _ in owed(record)):
                await anyio.sleep(POLL_S)

    async def forgotten(self) -> None:
        with anyio.fail_after(LIMIT_S):
            while await self.records():
                await anyio.sleep(POLL_S)

    async def delivered(self) -> None:
        with anyio.fail_after(LIMIT_S):
            while not all(record.delivered_at for record in await self.records()):
                await anyio.sleep(POLL_S)


attended: Final[list[Peer]] = []


async def soon(condition: Callable[[], object]) -> None:
    """What nobody tells of. The journal may be a thread."""
    with anyio.fail_after(LIMIT_S):
        while not condition():
            await anyio.sleep(POLL_S)


@pytest.fixture(params=["memory", "sqlite"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    attended.clear()
    async with AsyncExitStack() as stack:
        clock = ManualClock()
        journal = MemoryJournal() if request.param == "memory" else OnDisk(tmp_path / "journal", clock)
        yield Desk(await stack.enter_async_context(journal), clock)


# ── a task's life ─────────────────────────────────────────────────────────────────────────────


@requirement("2025:receive-at-once", "2025:receive-result", "2025:receive-marks")
async def test_a_task_is_made_at_once_and_its_result_is_waited_for(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make()
        assert task["status"] == "working"
        await person.until(lambda: person.asked)
        waiting = peer.send("tasks/result", {"taskId": task["taskId"]})
        assert (await peer.about("get", task)) == task
        assert waiting not in peer.replies
        person.ready.set()
        expected = {**ANSWER, "_meta": {RELATED: {"taskId": task["taskId"]}}}
        assert await peer.reply(waiting) == expected
        assert (await peer.about("get", task))["status"] == "completed"
        assert await peer.about("result", task) == expected
    assert person.asked == 1


@requirement("2025:receive-task-id")
async def test_the_server_is_told_to_look_more_rarely_at_what_takes_its_time(desk: Desk) -> None:
    async with desk.process(Person(), peer := FakePeer()):
        task = await peer.make()
        assert task["pollInterval"] == 1000
        await desk.clock.advance(10.0)
        assert (await peer.about("get", task))["pollInterval"] == 5000


async def test_ids_are_secrets(desk: Desk) -> None:
    async with desk.process(Person(), peer := FakePeer()):
        tasks = [await peer.make() for _ in range(8)]
    ids = {task["taskId"] for task in tasks}
    assert len(ids) == 8
    assert min(map(len, ids)) * 6 >= 128  # bits: one of 64 characters holds six
    assert len({task_id[:4] for task_id in ids}) == 8


@requirement("2025:receive-result")
@pytest.mark.parametrize(
    ("said", "code", "message", "data"),
    [
        (ErrorData(code=-1, message="User rejected", data={"why": 1}), -1, "User rejected", {"why": 1}),
        (RuntimeError("no"), -32603, "RuntimeError: no", None),
        (ElicitResult(action="accept", content={"name": 5}), -32603, "does not match", None),
    ],
)
async def test_no_answer_is_a_failed_task_with_the_error_that_a_plain_request_gets(
    desk: Desk, said: Any, code: int, message: str, data: Any
) -> None:
    person, peer = Person(said), FakePeer()
    person.ready.set()
    async with desk.process(person, peer):
        task = await peer.make()
        error = await peer.about("result", task)
        assert (error.code, error.data) == (code, data)
        assert message in error.message
        failed = await peer.about("get", task)
        assert (failed["status"], failed["statusMessage"]) == ("failed", error.message)


@requirement("2025:receive-notifications", "2025:receive-marks")
async def test_the_server_is_told_of_an_end(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make()
        person.ready.set()
        await peer.until(lambda: peer.notified)
        assert peer.notified == [("notifications/tasks/status", await peer.about("get", task))]
        assert peer.notified[0][1]["status"] == "completed"  # type: ignore[index]


@requirement("2025:receive-list")
async def test_a_list_comes_in_pages(desk: Desk) -> None:
    async with desk.process(Person(), peer := FakePeer(), policy=ReceivePolicy(page_size=2)):
        tasks = [await peer.make() for _ in range(3)]
        first = await peer.ask("tasks/list")
        second = await peer.ask("tasks/list", cursor=first["nextCursor"])
        listed = first["tasks"] + second["tasks"]
        assert (len(first["tasks"]), len(second["tasks"]), "nextCursor" in second) == (2, 1, False)
        assert sorted(map(repr, listed)) == sorted(map(repr, tasks))
        refused = await peer.ask("tasks/list", cursor="x")
        assert refused.code == -32602


@requirement("2025:receive-at-once")
async def test_a_request_that_comes_twice_is_one_task_and_one_question(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        first = await peer.make("a")
        await peer.make("a")
        await peer.until(lambda: len(peer.replies["a"]) == 2)
        assert peer.replies["a"] == [{"task": first}] * 2
        assert (await peer.make("b"))["taskId"] != first["taskId"]
        await person.until(lambda: person.asked == 2)


async def test_a_task_that_is_needed_for_one_of_the_servers_says_so_in_the_reply(desk: Desk) -> None:
    async with desk.process(Person(), peer := FakePeer()):
        mark = {RELATED: {"taskId": "theirs"}}
        reply = await peer.ask("elicitation/create", message="?", requestedSchema=FORM, task={}, _meta=mark)
        assert reply["_meta"] == mark


# ── replies ───────────────────────────────────────────────────────────────────────────────────

DOWN: Final = SessionError("HTTP 503", retryable=True, http_status=503)
LIMITED: Final = SessionError("HTTP 429", retryable=True, http_status=429, retry_after_s=20.0)
REFUSED: Final = CredentialRefusedError("HTTP 401", http_status=401)
WRONG: Final = SessionError("HTTP 400", http_status=400)


@requirement("law:3", "2025:receive-result")
@pytest.mark.parametrize("refusal", [DOWN, LIMITED, REFUSED])
@pytest.mark.parametrize("which", ["creation", "get", "result"])
async def test_a_reply_is_said_until_the_server_has_it(desk: Desk, which: str, refusal: SessionError) -> None:
    person, peer = Person(), FakePeer()
    person.ready.set()
    wait_s = refusal.retry_after_s or 0.0
    async with desk.process(person, peer):
        params: JSONObject = {"message": "name?", "requestedSchema": FORM, "task": {}}
        if which != "creation":
            params = {"taskId": (await peer.make())["taskId"]}
        peer.refuses, began_at = [refusal, refusal], desk.clock.monotonic()
        request_id = peer.send("elicitation/create" if which == "creation" else f"tasks/{which}", params)
        await desk.pass_until(lambda: request_id in peer.replies)
        assert len(peer.replies[request_id]) == 1
        assert desk.clock.monotonic() - began_at >= 2 * wait_s
        await person.until(lambda: person.asked)
        if which == "result":
            await desk.delivered()
    assert person.asked == 1


@requirement("law:3")
async def test_the_host_is_asked_once_the_server_may_know_of_the_task(desk: Desk) -> None:
    """Though nobody says so: its time would run out meanwhile."""
    person, peer = Person(), FakePeer()
    peer.refuses = [DOWN] * 6
    async with desk.process(person, peer):
        params: JSONObject = {"message": "name?", "requestedSchema": FORM, "task": {"ttl": 40_000}}
        request_id = peer.send("elicitation/create", params)
        await person.until(lambda: person.asked)
        assert len(peer.refuses) == 5
        await desk.pass_until(lambda: request_id in peer.replies)
        assert (person.asked, person.stopped) == (1, 1), "its time is over by now"


@requirement("2025:receive-ttl")
async def test_nobody_is_asked_for_what_is_over_before_the_server_knows_of_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, peer = Person(), FakePeer()
    going = anyio.Event()
    answer = peer.answer

    async def slowly(*about: Any) -> None:
        await going.wait()
        await answer(*about)

    monkeypatch.setattr(peer, "answer", slowly)
    async with desk.process(person, peer):
        params: JSONObject = {"message": "name?", "requestedSchema": FORM, "task": {"ttl": 5_000}}
        request_id = peer.send("elicitation/create", params)
        with anyio.fail_after(LIMIT_S):
            while not await desk.records():
                await anyio.sleep(POLL_S)
            while await desk.records():
                await desk.clock.advance(1.0)
        going.set()
        await peer.reply(request_id)
        await anyio.wait_all_tasks_blocked()
        assert not person.asked


async def test_a_reply_that_the_server_does_not_take_is_said_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make()
        peer.refuses = [WRONG]
        request_id = peer.send("tasks/get", {"taskId": task["taskId"]})
        await soon(lambda: "may not have arrived" in caplog.text)
        await desk.clock.advance(100.0)
        assert request_id not in peer.replies


async def test_a_reply_that_nobody_waits_for_any_more_is_not_said_again(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer) as receiver:
        task = await peer.make()
        peer.refuses = [DOWN]
        request_id = peer.send("tasks/get", {"taskId": task["taskId"]})
        await peer.until(lambda: not peer.refuses)
        receiver.withdraw(peer, request_id)
        await desk.clock.advance(100.0)
        assert request_id not in peer.replies
        peer.refuses = [DOWN]
        made = peer.send("elicitation/create", {"message": "!", "requestedSchema": FORM, "task": {}})
        await peer.until(lambda: not peer.refuses)
        receiver.withdraw(peer, made)
        await person.until(lambda: person.asked == 2)  # it is a task all the same, which the server can list


@requirement("law:3")
@pytest.mark.parametrize("then", ["tasks/result", "ping", "the same again"])
async def test_a_reply_is_not_said_to_another_request_that_has_the_id_by_then(desk: Desk, then: str) -> None:
    """It may have arrived, though nobody says so; and one server gives its IDs away again at once."""
    person, peer = Person(), FakePeer()
    async with desk.hearing(person, peer) as hearing:
        task = await peer.make()
        peer.refuses = [DOWN]
        about = {"taskId": task["taskId"]}
        hearing.told(peer, {"id": 5, "method": "tasks/get", "params": about})
        await peer.until(lambda: not peer.refuses)
        method = "tasks/get" if then == "the same again" else then
        for _ in range(1 if then == "ping" else 2):
            hearing.told(peer, {"id": 5, "method": method, "params": about})
            await anyio.wait_all_tasks_blocked()
        assert (5 in peer.replies) == (then == "ping"), "what has come twice is said no sooner for that"
        person.ready.set()
        await desk.pass_until(lambda: 5 in peer.replies)
        await desk.clock.advance(100.0)
        (reply,) = peer.replies[5]
        assert isinstance(reply, dict)
        assert ("status" in reply, "action" in reply) == (then == "the same again", then == "tasks/result")
        peer.replies.clear()
        hearing.told(peer, {"id": 5, "method": "tasks/get", "params": about})
        assert "status" in await peer.reply(5)


# ── what is owed ──────────────────────────────────────────────────────────────────────────────

FORM_PARAMS: Final[JSONObject] = {"message": "name?", "requestedSchema": FORM, "task": {}}


@requirement("law:1", "law:3")
@pytest.mark.parametrize("which", ["creation", "get", "result", "result in time"])
async def test_what_a_process_could_not_say_is_said_by_the_next_one(desk: Desk, which: str) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        if which == "creation":
            peer.refuses = [DOWN] * 100
            owed_id = peer.send("elicitation/create", FORM_PARAMS)
        else:
            task = await peer.make()
            await desk.told()
            if which == "get":
                peer.refuses = [DOWN] * 100
            owed_id = peer.send(f"tasks/{which.split()[0]}", {"taskId": task["taskId"]})
        await person.until(lambda: person.asked)
        await desk.owes(owed_id)
        if which == "result in time":
            peer.refuses = [DOWN] * 100
            person.ready.set()
            await desk.ended(task["taskId"])
    second, again = Person(), FakePeer()
    async with desk.process(second, again):
        second.ready.set()
        reply = await again.reply(owed_id)
        assert next(iter(reply)) == {"creation": "task", "get": "taskId"}.get(which, "action")
        await (desk.delivered() if "result" in which else desk.told())
        await desk.clock.advance(100.0)
        assert again.replies == {owed_id: [reply]}
    assert (person.asked, second.asked) == (1, which != "result in time")


async def test_what_the_server_has_taken_back_is_owed_to_nobody(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer) as receiver:
        task = await peer.make()
        await desk.told()
        for _ in range(3):
            waiting = peer.send("tasks/result", {"taskId": task["taskId"]})
            await desk.owes(waiting)
            receiver.withdraw(peer, waiting)
        await desk.told()
        last = peer.send("tasks/result", {"taskId": task["taskId"]})
        await desk.owes(last)
    second, again = Person(), FakePeer()
    async with desk.process(second, again):
        second.ready.set()
        assert (await again.reply(last))["action"] == "accept"
        await desk.delivered()
        assert list(again.replies) == [last]


@requirement("law:1")
async def test_a_server_that_lists_a_task_has_not_been_told_of_it(desk: Desk) -> None:
    async with desk.process(Person(), peer := FakePeer()):
        peer.refuses = [DOWN]
        made = peer.send("elicitation/create", FORM_PARAMS)
        await peer.until(lambda: not peer.refuses)
        (task,) = (await peer.ask("tasks/list"))["tasks"]
        assert (await peer.about("get", task))["status"] == "working"
        await desk.pass_until(lambda: made in peer.replies)
        assert peer.replies[made][0]["task"]["taskId"] == task["taskId"]
        await desk.told()
        assert (await peer.about("get", task))["status"] == "working"


async def test_debts_are_paid_whatever_the_pace(desk: Desk) -> None:
    async with desk.process(Person(), peer := FakePeer()):
        task = await peer.make()
        await desk.told()
        waiting = [peer.send("tasks/result", {"taskId": task["taskId"]}) for _ in range(12)]
        for one in waiting:
            await desk.owes(one)
    second, again = Person(), FakePeer()
    async with desk.process(second, again, policy=ReceivePolicy(max_requests_per_s=1)):
        second.ready.set()
        assert [(await again.reply(one))["action"] for one in waiting] == ["accept"] * 12


@requirement("law:3", "law:5")
async def test_whoever_notes_something_of_a_task_does_not_take_it_from_its_owner(desk: Desk) -> None:
    """The server speaks to one of ours on this stream, and to another on that."""
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer), desk.process(other := Person(), elsewhere := FakePeer()):
        tasks = [await peer.make() for _ in range(8)]
        looks = [elsewhere.send("tasks/get", {"taskId": task["taskId"]}) for task in tasks]
        looks += [peer.send("tasks/result", {"taskId": task["taskId"]}) for task in tasks]
        looks += [elsewhere.send("tasks/result", {"taskId": task["taskId"]}) for task in tasks]
        await desk.owes(looks[-1])
        (owner,) = {record.owner for record in await desk.records()}
        assert peer.receiver is not None
        assert owner == peer.receiver._custody.membership.owner
        await desk.clock.advance(120.0)
        await person.until(lambda: person.asked == 8)
        assert not other.asked


async def test_nothing_is_kept_of_requests_about_what_is_over(desk: Desk) -> None:
    async with desk.process(Person(), peer := FakePeer()) as receiver:
        made = [await peer.make(ttl=60_000) for _ in range(3)]
        await desk.told()
        for task in made:
            await desk.owes(peer.send("tasks/result", {"taskId": task["taskId"]}))
        telling = receiver._telling
        assert len(telling._waiting) == len(telling._ours) == 3
        await desk.clock.advance(61.0)
        await desk.forgotten()
        await desk.pass_until(lambda: not (telling._waiting or telling._ours or telling._creations))


@requirement("law:5")
async def test_what_is_noted_of_a_task_that_is_taken_just_then_leaves_it_to_its_new_owner(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, others = desk.journal.take, ["one", "another"]

    async def late(record_id: str, owner: str, gone: Judge) -> Taken | None:
        if others:
            await take(record_id, others.pop(0), lambda *_: True)
        return await take(record_id, owner, gone)

    async with desk.process(Person(), peer := FakePeer()):
        task = await peer.make()
        await desk.told()
        monkeypatch.setattr(desk.journal, "take", late)
        waiting = peer.send("tasks/result", {"taskId": task["taskId"]})
        await desk.owes(waiting)
        (record,) = await desk.records()
        assert (record.owner, others) == ("another", [])


@requirement("law:3")
async def test_an_answer_is_not_the_next_questions_which_has_the_same_id_and_words(desk: Desk) -> None:
    """The reply that told of the first task has arrived, though nobody has said so."""
    person, peer = Person(), FakePeer()
    async with desk.hearing(person, peer) as hearing:
        peer.refuses = [DOWN]
        asked = {"id": "x", "method": "elicitation/create", "params": FORM_PARAMS}
        hearing.told(peer, asked)
        await person.until(lambda: person.asked)
        (record,) = await desk.records()
        assert (await peer.ask("tasks/get", taskId=record.task_id))["status"] == "working"
        await desk.told()
        await desk.clock.advance(100.0)
        assert "x" not in peer.replies
        person.ready.set()
        await peer.ask("tasks/result", taskId=record.task_id)
        hearing.told(peer, asked)
        assert (await peer.reply("x"))["task"]["taskId"] != record.task_id
        await person.until(lambda: person.asked == 2)


@requirement("law:10")
@pytest.mark.parametrize("answered", [False, True])
async def test_nothing_is_said_of_what_is_owed_for_a_task_that_was_cancelled(
    desk: Desk, answered: bool
) -> None:
    person, peer = Person(), FakePeer()
    needed = Needed(peer, "theirs")
    async with desk.process(person, peer):
        await needed.make()
        await desk.told()
        owed_id = needed.look()[1]
        await person.until(lambda: person.asked)
        await desk.owes(owed_id)
        peer.refuses = [DOWN] * 100
        if answered:
            person.ready.set()
            await desk.ended(needed.task["taskId"])
    task = Task(task_id="theirs", status="working")
    await desk.journal.save(theirs(Observing(task=task, received_at=0.0, due_at=0.0, cancel="sending")))
    async with desk.process(Person(), again := FakePeer()):
        await desk.clock.advance(100.0)
        assert not again.replies


async def test_a_server_that_waits_for_a_task_of_ours_is_not_held_to_have_asked_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.hearing._QUESTION_S", 0.0)
    monkeypatch.setattr(Hearing, "_retrieve", lambda self, *args: None)
    person, peer = Person(), FakePeer()
    needed = Needed(peer, "theirs")
    async with desk.hearing(person, peer) as hearing:
        await needed.make()
        await person.until(lambda: person.asked)
        for _ in range(6):
            await hearing.questions(peer, "theirs", None)
        assert "has asked nothing" not in caplog.text
        person.ready.set()
        await desk.ended(needed.task["taskId"])
        for _ in range(6):
            await hearing.questions(peer, "theirs", None)
        assert "has asked nothing" in caplog.text


# ── what is needed for a task that is cancelled ───────────────────────────────────────────────


def theirs(state: State) -> TaskRecord:
    """A task of the server's own."""
    return TaskRecord(
        record_id="theirs",
        scope=Scope(ENDPOINT, ""),
        tool="tool",
        arguments_digest="",
        state=state,
        created_at=0.0,
        updated_at=0.0,
    )


class Needed:
    """A task that is needed for one of the server's own."""

    def __init__(self, peer: FakePeer, whose: str = "theirs") -> None:
        self.peer = peer
        self.params: JSONObject = {
            "message": "?",
            "requestedSchema": FORM,
            "task": {},
            "_meta": {RELATED: {"taskId": whose}},
        }
        self.task: Any = None

    async def make(self) -> None:
        self.task = (await self.peer.ask("elicitation/create", **self.params))["task"]

    def send_all(self) -> list[RequestId]:
        return [*self.look(), self.peer.send("elicitation/create", self.params)]

    def look(self) -> list[RequestId]:
        about = {"taskId": self.task["taskId"]}
        return [self.peer.send(f"tasks/{verb}", about) for verb in ("get", "result")]


@requirement("law:10")
async def test_nothing_is_said_for_a_task_that_was_cancelled(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer) as receiver:
        needed, other = Needed(peer), Needed(peer, "another")
        await needed.make()
        await other.make()
        await person.until(lambda: person.asked == 2)
        waiting = peer.send("tasks/result", {"taskId": needed.task["taskId"]})
        await anyio.wait_all_tasks_blocked()
        receiver.give_up("theirs")
        await person.until(lambda: person.stopped == 1)
        await desk.ended(needed.task["taskId"])
        sent = [waiting, *needed.send_all()]
        person.ready.set()
        assert (await peer.about("result", other.task))["action"] == "accept"
        await desk.clock.advance(60.0)
        assert not [one for one in sent if one in peer.replies]
        assert person.asked == 2
        # Which its server may do itself; and an error may be as much as it can bear.
        assert (await peer.about("cancel", needed.task))["status"] == "cancelled"
    peer = FakePeer()
    needed.peer = peer
    async with desk.process(again := Person(), peer):
        sent = needed.look()
        listed = (await peer.ask("tasks/list"))["tasks"]
        assert sorted(task["status"] for task in listed) == ["cancelled", "completed"]
        await desk.clock.advance(60.0)
        assert not [one for one in sent if one in peer.replies]
        assert not again.asked


@requirement("law:10")
@pytest.mark.parametrize("stubborn", [False, True])
async def test_an_answer_for_a_task_that_is_cancelled_just_then_is_not_said(
    desk: Desk, stubborn: bool
) -> None:
    """Not even if it was on its way, or if nobody could be stopped from giving it."""
    person, peer = Person(stubborn=stubborn), FakePeer()
    async with desk.process(person, peer) as receiver:
        needed = Needed(peer)
        await needed.make()
        await person.until(lambda: person.asked)
        peer.refuses = [] if stubborn else [DOWN]
        waiting = peer.send("tasks/result", {"taskId": needed.task["taskId"]})
        if not stubborn:
            person.ready.set()
            await peer.until(lambda: not peer.refuses)
        await anyio.wait_all_tasks_blocked()
        receiver.give_up("theirs")
        person.ready.set()
        await desk.clock.advance(100.0)
        await anyio.wait_all_tasks_blocked()
        assert waiting not in peer.replies
        assert not [one for one in needed.send_all() if one in peer.replies]


@requirement("law:10")
@pytest.mark.parametrize("how", ["wished for", "over", "not at all", "otherwise over"])
async def test_nobody_is_asked_for_what_a_cancelled_task_needed_of_the_process_before(
    desk: Desk, how: str
) -> None:
    async with desk.process(person := Person(), peer := FakePeer()):
        await Needed(peer).make()
        await person.until(lambda: person.asked)
    task = Task(task_id="theirs", status="working")
    state: State = Observing(task=task, received_at=0.0, due_at=0.0, cancel="sending")
    if how == "not at all":
        state = Observing(task=task, received_at=0.0, due_at=0.0)
    elif how != "wished for":
        outcome = Cancelled() if how == "over" else Completed(result={})
        state = Finished(outcome=outcome, task=task)
    await desk.journal.save(theirs(state))
    asked = how in ("not at all", "otherwise over")
    async with desk.process(again := Person(), FakePeer()):
        if asked:
            await again.until(lambda: again.asked)
        else:
            (record,) = await desk.records()
            await desk.ended(str(record.task_id))
    assert again.asked == asked


@requirement("law:10")
async def test_nobody_is_asked_for_what_is_given_up_while_it_is_made(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer) as receiver:
        sent = peer.send("elicitation/create", Needed(peer).params)
        receiver.give_up("theirs")
        with anyio.fail_after(LIMIT_S):
            while not any(record.finished for record in await desk.records()):
                await desk.clock.advance(5.0)
        assert sent not in peer.replies
    assert not person.asked


@requirement("law:10")
async def test_nobody_is_asked_for_what_is_given_up_while_its_session_is_looked_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk.process(person := Person(), peer := FakePeer()):
        await Needed(peer).make()
        await person.until(lambda: person.asked)
    again = FakePeer()
    pinged, going = anyio.Event(), anyio.Event()

    async def slowly(*_: Any, **__: Any) -> JSONObject:
        pinged.set()
        await going.wait()
        return {}

    monkeypatch.setattr(again, "request", slowly)
    async with desk.process(second := Person(), again) as receiver:
        with anyio.fail_after(LIMIT_S):
            await pinged.wait()
        receiver.give_up("theirs")
        going.set()
        with anyio.fail_after(LIMIT_S):
            while not any(record.finished for record in await desk.records()):
                await desk.clock.advance(5.0)
    assert not second.asked


@requirement("law:9")
async def test_what_another_session_has_asked_for_a_task_of_that_name_is_none_of_ours(desk: Desk) -> None:
    person, peer = Person(), FakePeer("theirs")
    async with desk.process(person, peer), desk.process(Person(), FakePeer("ours")) as other:
        needed = Needed(peer)
        await needed.make()
        await person.until(lambda: person.asked)
        other.give_up("theirs")
        await desk.clock.advance(60.0)
        person.ready.set()
        assert (await peer.about("result", needed.task))["action"] == "accept"


async def test_of_cancelled_tasks_so_many_are_known(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.telling._MOST_GIVEN_UP", 2)
    async with desk.process(Person(), peer := FakePeer()) as receiver:
        for one in ("first", "second", "third"):
            receiver.give_up(one)
        await Needed(peer, "first").make()
        late = [peer.send("elicitation/create", Needed(peer, one).params) for one in ("second", "third")]
        await desk.clock.advance(10.0)
        assert not [one for one in late if one in peer.replies]


# ── cancelling ────────────────────────────────────────────────────────────────────────────────


@requirement("2025:receive-cancel", "2025:receive-lifecycle", "2025:receive-result", "2025:receive-errors")
@pytest.mark.parametrize("stubborn", [False, True])
async def test_what_is_cancelled_stays_so_though_the_host_still_answers(desk: Desk, stubborn: bool) -> None:
    person, peer = Person(stubborn=stubborn), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make()
        await person.until(lambda: person.asked)
        waiting = peer.send("tasks/result", {"taskId": task["taskId"]})
        assert (await peer.about("cancel", task))["status"] == "cancelled"
        assert await peer.reply(waiting) == RpcError(-32603, "The task was cancelled.", None)
        if stubborn:
            person.ready.set()
        else:
            await person.until(lambda: person.stopped)
        await anyio.wait_all_tasks_blocked()
        assert (await peer.about("get", task))["status"] == "cancelled"
        assert (await peer.about("cancel", task)).code == -32602
        assert not peer.notified


async def test_another_process_of_the_session_can_cancel(desk: Desk) -> None:
    person, peer, other = Person(stubborn=True), FakePeer(), FakePeer()
    async with desk.process(person, peer), desk.process(Person(), other):
        task = await peer.make()
        await person.until(lambda: person.asked)
        assert (await other.about("cancel", task))["status"] == "cancelled"
        person.ready.set()
        await anyio.wait_all_tasks_blocked()
        assert (await peer.about("get", task))["status"] == "cancelled"


@requirement("2025:receive-cancel")
async def test_what_is_answered_cannot_be_cancelled(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    person.ready.set()
    async with desk.process(person, peer):
        task = await peer.make()
        await peer.until(lambda: peer.notified)
        assert (await peer.about("cancel", task)).code == -32602
        assert (await peer.about("get", task))["status"] == "completed"


async def test_a_result_that_nobody_waits_for_any_more_is_not_sent_and_the_task_goes_on(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer) as receiver:
        task = await peer.make()
        waiting = peer.send("tasks/result", {"taskId": task["taskId"]})
        await anyio.wait_all_tasks_blocked()
        receiver.withdraw(peer, waiting)
        await anyio.wait_all_tasks_blocked()
        person.ready.set()
        assert (await peer.about("result", task))["action"] == "accept"
        assert waiting not in peer.replies


async def test_a_request_for_a_result_that_comes_twice_is_answered_once(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make()
        for _ in range(2):
            peer.send("tasks/result", {"taskId": task["taskId"]}, "twice")
        person.ready.set()
        await peer.reply("twice")
        await desk.delivered()
        await anyio.wait_all_tasks_blocked()
        assert len(peer.replies["twice"]) == 1


# ── whose it is ───────────────────────────────────────────────────────────────────────────────


@requirement("2025:receive-isolation", "2025:receive-errors")
@pytest.mark.parametrize("other_id", ["t", None])
async def test_one_session_never_sees_anothers_tasks(desk: Desk, other_id: str | None) -> None:
    peer, other, nameless = FakePeer(), FakePeer(other_id), FakePeer(None)
    async with desk.process(Person(), peer, other, nameless):
        task = await peer.make()
        its = await nameless.make()
        for stranger, what in ((other, task), (other, its), (peer, its), (nameless, task)):
            for verb in ("get", "result", "cancel"):
                assert await stranger.about(verb, what) == GONE
            assert what not in (await stranger.ask("tasks/list"))["tasks"]
        assert (await nameless.about("get", its)) == its


async def test_the_same_session_sees_them_from_another_process(desk: Desk) -> None:
    person, peer, again = Person(), FakePeer(), FakePeer()
    async with desk.process(person, peer), desk.process(Person(), again):
        task = await peer.make()
        assert await again.about("get", task) == task
        waiting = again.send("tasks/result", {"taskId": task["taskId"]})
        await person.until(lambda: person.asked)
        await anyio.wait_all_tasks_blocked()
        person.ready.set()
        await peer.until(lambda: peer.notified)
        await desk.clock.advance(5.0)
        assert (await again.reply(waiting))["action"] == "accept"


# ── limits ────────────────────────────────────────────────────────────────────────────────────


@requirement("2025:receive-ttl", "2025:receive-limits", "2025:receive-errors")
@pytest.mark.parametrize("answered", [False, True])
async def test_a_time_that_is_over_ends_all_of_a_task(desk: Desk, answered: bool) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make(ttl=60_000)
        longer = await peer.make(ttl=120_000)
        await person.until(lambda: person.asked == 2)
        waiting = peer.send("tasks/result", {"taskId": task["taskId"]})
        if answered:
            person.ready.set()
            await peer.until(lambda: len(peer.notified) == 2)
        await anyio.wait_all_tasks_blocked()
        await desk.clock.advance(61.0)
        if not answered:
            assert (await peer.reply(waiting)).code == -32602
            await person.until(lambda: person.stopped)
        assert (await peer.about("get", task)).code == -32602
        assert (await peer.ask("tasks/list"))["tasks"] == [await peer.about("get", longer)]
        await desk.clock.advance(60.0)
        with desk.clock.busy():
            await desk.forgotten()
    assert person.stopped == (0 if answered else 2)


@requirement("2025:receive-ttl", "2025:receive-list")
async def test_a_task_whose_time_is_over_is_not_shown_even_before_it_is_forgotten(desk: Desk) -> None:
    async with desk.process(Person(), peer := FakePeer()):
        task = await peer.make()
        desk.clock.jump(3601.0)
        assert (await peer.about("get", task)).code == -32602
        assert await peer.ask("tasks/list") == {"tasks": []}


async def test_an_answer_does_not_bring_back_a_task_whose_time_is_over(desk: Desk) -> None:
    person, peer = Person(stubborn=True), FakePeer()
    async with desk.process(person, peer):
        await peer.make(ttl=60_000)
        await person.until(lambda: person.asked)
        await desk.clock.advance(61.0)
        await desk.forgotten()
        person.ready.set()
        await anyio.wait_all_tasks_blocked()
    assert not await desk.records()
    assert not peer.notified


@requirement("2025:receive-limits")
async def test_a_session_has_so_many_tasks_at_once_and_others_have_as_many(desk: Desk) -> None:
    person, peer, other = Person(), FakePeer(), FakePeer("t")
    async with desk.process(person, peer, other, policy=ReceivePolicy(max_working=2)):
        first = await peer.make()
        await peer.make()
        assert (await peer.make()).code == -32600
        assert (await other.make())["status"] == "working"
        await peer.about("cancel", first)
        assert (await peer.make())["status"] == "working"


@requirement("2025:receive-limits")
async def test_two_requests_at_once_do_not_both_take_the_last_place(desk: Desk) -> None:
    async with desk.process(Person(), peer := FakePeer(), policy=ReceivePolicy(max_working=1)):
        params = {"message": "?", "requestedSchema": FORM, "task": {}}
        both = [peer.send("elicitation/create", params) for _ in range(2)]
        replies = [await peer.reply(one) for one in both]
        assert sorted(isinstance(reply, RpcError) for reply in replies) == [False, True]


@requirement("2025:receive-limits")
async def test_requests_that_are_being_answered_are_bounded(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer, policy=ReceivePolicy(max_requests=3)):
        task = await peer.make()
        waiting = [peer.send("tasks/result", {"taskId": task["taskId"]}) for _ in range(4)]
        await anyio.wait_all_tasks_blocked()
        assert "asks for too much at once" in caplog.text
        person.ready.set()
        for one in waiting[:3]:
            assert (await peer.reply(one))["action"] == "accept"
        await desk.delivered()
        await soon(lambda: caplog.text.count("The server has the end of") == 3)
        assert waiting[3] not in peer.replies
        await anyio.wait_all_tasks_blocked()
        assert (await peer.about("get", task))["status"] == "completed"


@requirement("2025:receive-pace")
async def test_a_server_that_asks_too_often_is_told_so_and_may_ask_again_later(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk.process(Person(), peer := FakePeer(), policy=ReceivePolicy(max_requests_per_s=2)):
        task = await peer.make()
        for _ in range(19):
            assert (await peer.about("get", task))["status"] == "working"
        refused = await peer.about("get", task)
        assert (refused.code, refused.message) == (
            -32603,
            "Too many requests about tasks; ask again in a second",
        )
        assert "asks about tasks more than 2 times a second" in caplog.text
        other = FakePeer("another-session")
        other.receiver = peer.receiver
        assert (await other.make())["status"] == "working", "it is not the others' fault"
        await desk.clock.advance(1)
        for _ in range(2):
            assert (await peer.about("get", task))["status"] == "working"
        assert isinstance(await peer.about("get", task), RpcError)
        await desk.clock.advance(1000)
        replies = [await peer.about("get", task) for _ in range(21)]
        assert [isinstance(reply, RpcError) for reply in replies] == [*20 * [False], True]


@requirement("2025:receive-audit")
async def test_what_becomes_of_a_task_is_in_the_log_without_its_id(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcp_tasks_client")
    async with desk.process(person := Person(), peer := FakePeer()):
        task = await peer.make()
        person.ready.set()
        await peer.about("result", task)
        await desk.delivered()
        await anyio.wait_all_tasks_blocked()
    for event in ("The server has us run", "The host has answered", "The server has the end of"):
        assert event in caplog.text
    assert task["taskId"] not in caplog.text


@requirement("2025:receive-words")
@pytest.mark.parametrize(
    ("method", "params", "said"),
    [
        ("tasks/get", {"taskId": "unheard-of"}, "not found"),
        ("tasks/result", {"taskId": 7}, "taskId"),
        ("tasks/list", {"cursor": "no such"}, "cursor"),
    ],
)
async def test_an_error_says_what_was_wrong(
    desk: Desk, method: str, params: dict[str, Any], said: str
) -> None:
    async with desk.process(Person(), peer := FakePeer()):
        assert said in (await peer.ask(method, **params)).message


# ── after a crash ─────────────────────────────────────────────────────────────────────────────


@requirement("law:3")
async def test_what_was_answered_is_served_by_the_next_process_and_not_asked_again(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make()
        person.ready.set()
        await peer.until(lambda: peer.notified)
    again, second = FakePeer(), Person()
    async with desk.process(second, again):
        await soon(lambda: attended == [again])
        assert (await again.about("result", task))["content"] == {"name": "Ada"}
    assert second.asked == 0


@requirement("law:3")
async def test_what_was_being_asked_is_asked_again_by_the_next_process(desk: Desk) -> None:
    async with desk.process(person := Person(), peer := FakePeer()):
        task = await peer.make()
        await person.until(lambda: person.asked)
    second, again = Person(), FakePeer()
    async with desk.process(second, again):
        await second.until(lambda: second.asked)
        second.ready.set()
        assert (await again.about("result", task))["content"] == {"name": "Ada"}
    assert attended == [again]


async def test_a_process_that_lives_keeps_its_tasks(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        await peer.make()
        await person.until(lambda: person.asked)
        async with desk.process(other := Person(), FakePeer()):
            await desk.clock.advance(120.0)
            assert not other.asked
    assert not attended


@requirement("law:1")
@pytest.mark.parametrize("answered", [False, True])
async def test_nobody_is_asked_for_a_session_that_the_server_has_forgotten(
    desk: Desk, answered: bool
) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        await peer.make()
        await person.until(lambda: person.asked)
        if answered:
            person.ready.set()
            await peer.until(lambda: peer.notified)
    second, again = Person(), FakePeer()
    again.lost, began_at = True, desk.clock.monotonic()
    async with desk.process(second, again):
        await desk.pass_until(lambda: again.looks == 3)
        assert desk.clock.monotonic() - began_at >= 20.0, "one of several servers may have said so"
        if not answered:
            await desk.forgotten()
        await desk.clock.advance(300.0)
        # What was said costs nothing, and is served should the server come for it after all.
        assert [record.finished for record in await desk.records()] == [True] * answered
        assert again.looks == 3
        await desk.clock.advance(3600.0)
        with anyio.fail_after(LIMIT_S):
            while await desk.records():
                await desk.clock.advance(5.0)
    assert not second.asked


@requirement("law:1", "law:3")
@pytest.mark.parametrize("answered", [False, True])
async def test_a_session_that_was_denied_by_mistake_is_gone_on_with(desk: Desk, answered: bool) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make()
        await person.until(lambda: person.asked)
        if answered:
            person.ready.set()
            await peer.until(lambda: peer.notified)
    second, again = Person(), FakePeer()
    second.ready.set()
    again.lost, again.back_at_look = True, 3
    async with desk.process(second, again):
        await desk.pass_until(lambda: again in attended)
        assert (await again.about("result", task))["action"] == "accept"
        waiting = again.send("elicitation/create", {"message": "!", "requestedSchema": FORM, "task": {}})
        await again.reply(waiting)
    assert second.asked == 2 - answered


async def test_a_server_that_is_away_is_waited_for(desk: Desk) -> None:
    async with desk.process(person := Person(), peer := FakePeer()):
        await peer.make()
        await peer.make()
        await person.until(lambda: person.asked == 2)
    second, again = Person(), FakePeer()
    again.reachable = False
    async with desk.process(second, again):
        await soon(lambda: again.requests)
        await anyio.wait_all_tasks_blocked()
        assert again.requests == ["ping"]  # for both
        assert not second.asked
        again.reachable = True
        with anyio.fail_after(LIMIT_S):
            while second.asked < 2:
                await desk.clock.advance(5.0)
                await anyio.sleep(POLL_S)  # for the journal's thread
    assert attended[-1] is again


@requirement("law:3", "law:7")
@pytest.mark.parametrize("lost", [False, True])
async def test_a_session_that_does_not_reply_holds_up_no_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.parties._LOOK_S", 3600.0)  # of real time, which passes as well
    peers = [FakePeer(name) for name in ("first", "second", "third")]
    async with desk.process(person := Person(), *peers):
        for peer in peers:
            await peer.make()
        await person.until(lambda: person.asked == 3)
    second, again = Person(), [FakePeer(str(peer.session_id)) for peer in peers]
    for peer in again[:2]:
        peer.silent, peer.lost = True, lost
    async with desk.process(second, *again):
        await second.until(lambda: second.asked)
        assert attended == again[2:], "whichever is looked for first"
        await desk.clock.advance(600.0)
        assert second.asked == 1
        assert all(peer.requests == ["ping"] or peer.looks == 1 for peer in again[:2]), "one look at a time"


async def test_a_session_that_did_not_reply_is_looked_for_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.parties._LOOK_S", 0.05)
    async with desk.process(person := Person(), peer := FakePeer()):
        await peer.make()
        await person.until(lambda: person.asked)
    second, again = Person(), FakePeer()
    again.silent = True
    async with desk.process(second, again):
        await desk.pass_until(lambda: len(again.requests) >= 2)
        again.silent = False
        await desk.pass_until(lambda: second.asked)
    assert attended[-1] is again


async def test_a_server_that_knows_no_ping_is_there(desk: Desk) -> None:
    async with desk.process(person := Person(), peer := FakePeer()):
        await peer.make()
        await person.until(lambda: person.asked)
    second, again = Person(), FakePeer()
    again.pings = False
    async with desk.process(second, again):
        await second.until(lambda: second.asked)
    assert again in attended


async def test_a_connection_without_a_name_ends_with_its_process(desk: Desk) -> None:
    async with desk.process(person := Person(), peer := FakePeer(None)):
        await peer.make()
        await person.until(lambda: person.asked)
    second = Person()
    async with desk.process(second, FakePeer(None)):
        await desk.forgotten()
    assert not second.asked
    assert not attended


async def test_what_nobody_here_can_answer_is_left_to_others(desk: Desk) -> None:
    async with desk.process(person := Person(), peer := FakePeer()):
        await peer.make()
        await person.until(lambda: person.asked)
    receiver = Receiver(desk.journal, Callbacks(sampling=person), ENDPOINT, clock=desk.clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receiver.run, lambda _: FakePeer(), attended.append)
        await desk.clock.advance(60.0)
        tasks.cancel_scope.cancel()
    assert not attended
    async with desk.process(second := Person(), FakePeer()):
        await second.until(lambda: second.asked)


async def test_what_was_cancelled_is_not_gone_back_for(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        await peer.about("cancel", await peer.make())
    async with desk.process(person, FakePeer()):
        await desk.clock.advance(60.0)
    assert not attended


async def test_what_the_server_has_had_is_not_gone_back_for(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    person.ready.set()
    async with desk.process(person, peer):
        task = await peer.make()
        await peer.about("result", task)
        await desk.delivered()
    async with desk.process(Person(), again := FakePeer()):
        await desk.clock.advance(60.0)
        assert not attended
        assert (await again.about("result", task))["action"] == "accept"
    # Should none of us come back, the journal may forget it by itself, but not before its time is over.
    (record,) = await desk.records()
    assert await desk.journal.prune(desk.clock.time() + 3000.0) == 0
    assert await desk.journal.prune(desk.clock.time() + 3601.0) == 1
    assert record.owner is None


# ── faults ────────────────────────────────────────────────────────────────────────────────────


class FailingJournal(MemoryJournal):
    """Fails as often as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        if self.failures:
            self.failures -= 1
            raise JournalError("the disk is full")
        await super().save(record, known=known)


@requirement("2025:receive-errors")
async def test_what_the_server_has_had_is_known_though_somebody_takes_it_just_then() -> None:
    class TakenMeanwhile(MemoryJournal):
        times = 2

        async def deliver(self, at: float, fences: Mapping[str, int]) -> None:
            if self.times:
                self.times -= 1
                for record_id in fences:
                    await self.take(record_id, "somebody", lambda owner, lease: True)
            await super().deliver(at, fences)

    async with TakenMeanwhile() as journal:
        desk = Desk(journal)
        person, peer = Person(), FakePeer()
        person.ready.set()
        async with desk.process(person, peer):
            await peer.about("result", await peer.make())
            await desk.delivered()
        assert not journal.times


async def test_a_task_that_cannot_be_journaled_is_not_begun() -> None:
    async with FailingJournal() as journal:
        desk, person, peer = Desk(journal), Person(), FakePeer()
        async with desk.process(person, peer):
            journal.failures = 1
            assert (await peer.make()).code == -32603
            await desk.clock.advance(60.0)
            assert not person.asked
            assert (await peer.make())["status"] == "working"


@requirement("law:3", "2025:receive-cancel")
async def test_an_answer_to_what_could_not_be_cancelled_counts() -> None:
    async with FailingJournal() as journal:
        desk, person, peer = Desk(journal), Person(), FakePeer()
        async with desk.process(person, peer):
            task = await peer.make()
            await person.until(lambda: person.asked)
            await desk.told()
            journal.failures = 1
            assert (await peer.about("cancel", task)).code == -32603
            person.ready.set()
            await peer.until(lambda: peer.notified)
            await desk.clock.advance(60.0)
            assert (await peer.about("get", task))["status"] == "completed"
            assert person.asked == 1


@requirement("2025:receive-cancel")
async def test_a_task_is_cancelled_though_another_process_stores_something_just_then(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, peer = Person(), FakePeer()
    save, taken = desk.journal.save, list[object]()

    async def late(record: TaskRecord, *, known: bool = False) -> None:
        if record.finished and not taken:
            taken.append(await desk.journal.take(record.record_id, "another", lambda *_: True))
        await save(record, known=known)

    monkeypatch.setattr(desk.journal, "save", late)
    async with desk.process(person, peer):
        task = await peer.make()
        await desk.told()
        assert (await peer.about("cancel", task))["status"] == "cancelled"
        assert taken


@requirement("law:3", "2025:receive-cancel")
async def test_what_is_cancelled_while_it_is_taken_up_is_asked_of_nobody(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk.process(before := Person(), left := FakePeer()):
        task = await left.make()
        await before.until(lambda: before.asked)
        await desk.told()
    take, person, peer = Custody.take, Person(), FakePeer()
    cancelled: list[Any] = []

    async def late(self: Custody, record: TaskRecord) -> TaskRecord | None:
        if not cancelled:
            cancelled.append("is being")
            cancelled[0] = (await peer.about("cancel", task))["status"]
        return await take(self, record)

    monkeypatch.setattr(Custody, "take", late)
    async with desk.process(person, peer):
        await desk.clock.advance(120.0)
        with anyio.fail_after(LIMIT_S):
            while cancelled != ["cancelled"]:
                await anyio.sleep(0.001)
        await desk.clock.advance(120.0)
        assert not person.asked


@requirement("law:3", "2025:receive-cancel")
@pytest.mark.parametrize("answered", ["at once", "later"])
async def test_a_task_that_another_process_could_not_cancel_is_still_its_owners(answered: str) -> None:
    async with FailingJournal() as journal:
        desk, person, peer = Desk(journal), Person(), FakePeer()
        async with desk.process(person, peer):
            task = await peer.make()
            await person.until(lambda: person.asked)
            await desk.told()
            async with desk.process(other := Person(), elsewhere := FakePeer()):
                journal.failures = 1
                assert (await elsewhere.about("cancel", task)).code == -32603
                if answered == "later":
                    await desk.clock.advance(120.0)
                person.ready.set()
                await peer.until(lambda: peer.notified)
                await desk.clock.advance(120.0)
                assert (await elsewhere.about("get", task))["status"] == "completed"
                assert elsewhere.receiver is not None
                assert bool(elsewhere.receiver._custody._owed) == (answered == "at once"), (
                    "what was given back"
                )
            assert (person.asked, other.asked) == (1, 0)


@requirement("law:3")
async def test_what_could_not_be_cancelled_is_taken_up_when_its_owner_is_gone() -> None:
    async with FailingJournal() as journal:
        desk, person, peer = Desk(journal), Person(), FakePeer()
        async with desk.process(other := Person(), elsewhere := FakePeer()):
            async with desk.process(person, peer):
                task = await peer.make()
                await person.until(lambda: person.asked)
                await desk.told()
                journal.failures = 1
                assert (await elsewhere.about("cancel", task)).code == -32603
                await desk.clock.advance(120.0)
                assert not other.asked
            await desk.clock.advance(120.0)
            await other.until(lambda: other.asked)
            other.ready.set()
            assert (await elsewhere.about("result", task))["content"] == {"name": "Ada"}


async def test_what_somebody_has_taken_meanwhile_is_not_given_back(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        await peer.make()
        await person.until(lambda: person.asked)
        assert peer.receiver is not None
        custody = peer.receiver._custody
        await desk.told()
        (record,) = await desk.records()
        custody._owed[record.record_id] = "its owner before"
        await desk.journal.take(record.record_id, "another process", lambda *_: True)
        assert await custody.take(record) is not None, "of whom nobody has heard"
        assert not custody._owed


class HeldJournal(MemoryJournal):
    """Stores cancellations when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.held = anyio.Event()
        self.go = anyio.Event()

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        if record.finished:
            self.held.set()
            await self.go.wait()
        await super().save(record, known=known)


@requirement("law:3", "2025:receive-cancel")
async def test_nobody_is_asked_for_what_is_just_being_cancelled() -> None:
    async with HeldJournal() as journal:
        desk, person, peer = Desk(journal), Person(), FakePeer()
        async with desk.process(person, peer):
            task = await peer.make()
            await person.until(lambda: person.asked)
            async with desk.process(other := Person(), elsewhere := FakePeer()):
                cancel = elsewhere.send("tasks/cancel", {"taskId": task["taskId"]})
                await journal.held.wait()
                await desk.clock.advance(120.0)
                journal.go.set()
                assert (await elsewhere.reply(cancel))["status"] == "cancelled"
                await desk.clock.advance(120.0)
                await person.until(lambda: person.stopped)  # though it is asked elsewhere
                assert not other.asked


@requirement("law:3")
@pytest.mark.parametrize("who", ["the one that was taken for dead", "the other one"])
async def test_of_two_who_are_asked_the_first_to_answer_counts(desk: Desk, who: str) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make()
        await person.until(lambda: person.asked)
        await desk.told()
        (record,) = await desk.records()
        taken = await desk.journal.take(record.record_id, "the other one", lambda *_: True)
        assert taken is not None
        theirs = completed(taken.record, {"action": "decline"}, desk.clock.time())
        if who == "the other one":
            await desk.journal.save(theirs, known=True)
            person.ready.set()
            await soon(lambda: not receiver_asks(peer))
            assert await desk.records() == [theirs], "as it was, so that it can be delivered"
            assert not peer.notified
        else:
            person.ready.set()
            await peer.until(lambda: peer.notified)
            with pytest.raises(DrivenElsewhereError):
                await desk.journal.save(theirs, known=True)
        assert (await peer.about("get", task))["status"] == "completed"


def receiver_asks(peer: FakePeer) -> bool:
    assert peer.receiver is not None
    return bool(peer.receiver._asking._runs)


@requirement("law:1", "law:3")
async def test_an_answer_that_cannot_be_journaled_is_kept_and_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with FailingJournal() as journal:
        desk, person, peer = Desk(journal), Person(), FakePeer()
        async with desk.process(person, peer):
            task = await peer.make()
            await person.until(lambda: person.asked)
            await desk.told()
            journal.failures = 3
            person.ready.set()
            await desk.clock.advance(3.0)
            assert (await peer.about("get", task))["status"] == "working"
            assert not peer.notified
            await desk.clock.advance(60.0)
            assert (await peer.about("get", task))["status"] == "completed"
    assert person.asked == 1
    assert "until it can be journaled" in caplog.text


async def test_a_session_that_is_lost_meanwhile_ends_the_asking(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make()
        await person.until(lambda: person.asked)
        waiting = peer.send("tasks/result", {"taskId": task["taskId"]})
        peer.lost, lost_at = True, desk.clock.time()
        await desk.pass_until(lambda: person.stopped)
        assert 20.0 <= desk.clock.time() - lost_at <= 60.0
        await desk.forgotten()
        peer.lost = False
        await desk.clock.advance(30.0)
        assert waiting not in peer.replies


@requirement("law:3")
async def test_a_prompt_stays_up_though_its_session_is_denied_by_mistake(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer):
        task = await peer.make()
        await person.until(lambda: person.asked)
        for _ in range(2):  # it counts anew
            peer.lost, peer.back_at_look = True, peer.looks + 3
            await desk.pass_until(lambda: not peer.lost)
            assert peer in attended
            attended.clear()
        person.ready.set()
        assert (await peer.about("result", task))["action"] == "accept"
    assert (person.asked, person.stopped) == (1, 0)


@requirement("law:1", "law:3")
async def test_what_is_answered_while_its_session_is_looked_for_in_vain_is_kept(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, peer = Person(), FakePeer()
    looks = 0

    async def look_again() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            person.ready.set()
            await desk.ended(task["taskId"])

    monkeypatch.setattr(peer, "look_again", look_again)
    async with desk.process(person, peer):
        task = await peer.make()
        await desk.told()
        await person.until(lambda: person.asked)
        peer.lost = True
        await desk.pass_until(lambda: looks == 3)
        await desk.clock.advance(30.0)
        peer.lost = False
        assert (await peer.about("result", task))["action"] == "accept"
    assert (person.asked, person.stopped) == (1, 0)


async def test_an_inputs_that_breaks_does_not_end_the_client(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Callbacks):
        async def answer(self, context: Any, request: Any) -> Any:
            raise RuntimeError("a secret of the host's")

    async with MemoryJournal() as journal, anyio.create_task_group() as tasks:
        peer = FakePeer()
        peer.receiver = Receiver(journal, Broken(elicitation=Person()), ENDPOINT)
        tasks.start_soon(peer.receiver.run, lambda _: peer, attended.append)
        await anyio.wait_all_tasks_blocked()
        error = await peer.about("result", await peer.make())
        assert error == RpcError(-32603, "The client has no answer", None)
        tasks.cancel_scope.cancel()
    assert "a secret of the host's" in caplog.text


@requirement("2025:receive-undeclared")
async def test_plain_requests_are_left_to_others(desk: Desk) -> None:
    async with desk.process(Person(), peer := FakePeer()) as receiver:
        for method, params in (
            ("elicitation/create", {"message": "?"}),
            ("sampling/createMessage", {"task": {}}),
            ("ping", None),
            ("notifications/tasks/status", {"taskId": "1"}),
        ):
            assert not receiver.told(peer, {"id": 1, "method": method, "params": params})
        assert not receiver.told(peer, {"method": "tasks/get", "params": {"taskId": "1"}})


@requirement("law:1", "law:8")
@pytest.mark.parametrize("then", ["answered", "withdrawn"])
async def test_what_has_come_is_answered_before_all_is_let_go_of(desk: Desk, then: str) -> None:
    peer = FakePeer()
    async with desk.process(Person(), peer) as receiver, anyio.create_task_group() as closing:
        waits = peer.send("tasks/result", {"taskId": (await peer.make())["taskId"]})
        await desk.owes(waits)
        peer.refuses = [SessionError("down", retryable=True)]
        request_id = peer.send("elicitation/create", {"message": "?", "requestedSchema": FORM, "task": {}})
        over = anyio.Event()

        async def close() -> None:
            await receiver.retire()
            over.set()

        closing.start_soon(close)
        await peer.until(lambda: not peer.refuses)
        await anyio.sleep(10 * POLL_S)  # the journal may be a thread
        assert not over.is_set()
        if then == "withdrawn":
            receiver.withdraw(peer, request_id)
        else:
            await desk.pass_until(lambda: peer.replies.get(request_id))
        with anyio.fail_after(LIMIT_S):
            await over.wait()
    assert waits not in peer.replies
    assert len(await desk.records()) == 2


@requirement("law:8")
async def test_nothing_is_served_or_asked_once_it_is_closed(desk: Desk) -> None:
    person, peer = Person(), FakePeer()
    async with desk.process(person, peer) as receiver:
        task = await peer.make()
        peer.send("tasks/result", {"taskId": task["taskId"]})
        await person.until(lambda: person.asked)
    assert person.stopped == 1
    assert not receiver.told(peer, {"id": 5, "method": "tasks/get", "params": task})
    (record,) = await desk.records()
    assert record.pending
