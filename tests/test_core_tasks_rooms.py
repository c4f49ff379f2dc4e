"""The rooms of the older generation by themselves: what no real server can be made to do when it should."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from mcp_types import ElicitResult, Tool

from mcp_tasks_client.old.errors import ConnectionLostError, MissingCapabilityError, SessionError
from mcp_tasks_client.old.inputs import Callbacks
from mcp_tasks_client.old.sessions import retrievals
from mcp_tasks_client.old.sessions.asked import Asked
from mcp_tasks_client.old.sessions.hearing import Hearing
from mcp_tasks_client.old.sessions.limits import Limits
from mcp_tasks_client.old.sessions.peer import Peer
from mcp_tasks_client.old.sessions.shapes_2025_11_25 import (
    RELATED_TASK,
    Memo,
    created_before,
    created_task,
    ended,
    marked,
    related_task,
    request_id_of,
    snapshot,
)
from mcp_tasks_client.old.sessions.task_wish import Preference, TaskWish
from mcp_tasks_client.old.sessions.tasks_2025_11_25 import CoreTasksSession
from mcp_tasks_client.old.wire import JSONObject, MalformedError, RequestId, RpcError, Task

from ._requirements import requirement

TASK: Final = "task-1"
MARK: Final = {RELATED_TASK: {"taskId": TASK}}
NAME: Final[JSONObject] = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object"}}
LIMIT_S: Final = 10.0


LIMITS: Final = Limits(
    max_response_bytes=1000,
    tasks_in_flight=1,
    calls_in_flight=1,
    task_timeout_s=10.0,
    call_read_timeout_s=10.0,
)


class ScriptedPeer(Peer):
    """Answers each request when it is told to, and remembers what it was told."""

    def __init__(self, session_id: str | None = "s") -> None:
        super().__init__(session_id)
        self.requests: list[tuple[str, RequestId | None]] = []
        self.taken_back: list[RequestId] = []
        self.refuses_to_take_back = False
        self.memo: Callable[[], Memo] = Memo
        self.memo_then: Memo | None = None
        self.answers: list[tuple[RequestId, JSONObject | RpcError]] = []
        self.reply: JSONObject | SessionError | None = None
        self.go = anyio.Event()
        self.cancelled = 0
        self.lasting_s = 0.0

    async def initialize(self, params: JSONObject, timeout_s: float) -> JSONObject:
        await anyio.lowlevel.checkpoint()
        return {}

    async def request(
        self,
        method: str,
        params: JSONObject,
        silence_s: float,
        *,
        task_id: str | None = None,
        request_id: RequestId | None = None,
    ) -> JSONObject:
        self.requests.append((method, request_id))
        try:
            await self.go.wait()
            await anyio.sleep(self.lasting_s)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        if isinstance(self.reply, SessionError):
            raise self.reply
        assert self.reply is not None
        return self.reply

    async def answer(
        self,
        request_id: RequestId,
        answer: JSONObject | RpcError,
        timeout_s: float,
        task_id: str | None = None,
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.answers.append((request_id, answer))

    async def take_back(self, request_id: RequestId, timeout_s: float) -> None:
        await anyio.lowlevel.checkpoint()
        if self.refuses_to_take_back:
            self.memo_then = self.memo()
            raise ConnectionLostError("busy", retryable=True)
        self.taken_back.append(request_id)


def question(request_id: object = 0, **params: Any) -> JSONObject:
    return {"id": request_id, "method": "elicitation/create", "params": {**NAME, "_meta": MARK, **params}}


# ── shapes ────────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_goes_by_the_names_of_the_newer_generation() -> None:
    old = {"taskId": TASK, "status": "working", "ttl": None, "pollInterval": 500, "else": 1}
    new = {"taskId": TASK, "status": "working", "ttlMs": None, "pollIntervalMs": 500, "else": 1}
    assert snapshot(old) == new
    with pytest.raises(MalformedError):
        snapshot([])


def test_a_result_that_happens_to_have_a_task_in_it_is_a_result() -> None:
    assert created_task({"content": [], "task": "mine"}) is None
    assert created_task({"content": [], "task": {"name": "mine"}}) is None
    created = created_task({"task": {"taskId": TASK, "status": "working"}, "_meta": {"a": 1}})
    assert created == {"taskId": TASK, "status": "working", "_meta": {"a": 1}}


RETURNED: Final[JSONObject] = {"content": [], "isError": True}


def error(code: int, message: str, **data: Any) -> JSONObject:
    return {"status": "failed", "error": {"code": code, "message": message, **data}}


@requirement("2025:result", "2025:failed")
@pytest.mark.parametrize(
    ("status", "reply", "expected"),
    [
        ("completed", {"content": []}, {"status": "completed", "result": {"content": []}}),
        ("failed", RETURNED, {"status": "completed", "result": RETURNED}),
        ("failed", {"_meta": {}}, error(-32603, "no luck")),
        ("failed", RpcError(-5, "no", {"a": 1}), error(-5, "no", data={"a": 1})),
        ("completed", RpcError(-5, "no", None), error(-5, "no")),
    ],
)
def test_an_end_is_what_tasks_result_says(status: str, reply: Any, expected: JSONObject) -> None:
    task = {"taskId": TASK, "status": status, "statusMessage": "no luck"}
    assert ended(task, reply) == {**task, **expected}


def test_a_failure_without_a_word_is_said_to_be_one() -> None:
    task = ended({"taskId": TASK, "status": "failed"}, {})
    assert "does not say why" in task["error"]["message"]


@pytest.mark.parametrize("request_id", [0, "", "0", -1, 1.5])
def test_any_id_can_be_answered(request_id: object) -> None:
    assert request_id_of({"id": request_id}) == request_id


@pytest.mark.parametrize("request_id", [None, True, [], {}])
def test_what_is_no_id_cannot(request_id: object) -> None:
    assert request_id_of({"id": request_id}) is None


@pytest.mark.parametrize(
    "meta", [None, 1, {}, {RELATED_TASK: 1}, {RELATED_TASK: {"taskId": ""}}, {RELATED_TASK: {"taskId": 7}}]
)
def test_a_message_may_belong_to_no_task(meta: object) -> None:
    assert related_task({"_meta": meta}) is None
    assert related_task(meta) is None


def test_a_mark_is_added_to_what_an_answer_says_besides() -> None:
    answer = marked({"action": "accept", "_meta": {"a": 1}}, TASK)
    assert answer == {"action": "accept", "_meta": {"a": 1, **MARK}}


STRANGE: Final = '{"session_id": 1, "retrieval": [], "asked": "no"}'


@pytest.mark.parametrize("text", [None, "", "opaque", "[]", "7", STRANGE])
def test_a_memo_that_is_somebody_elses_says_nothing(text: str | None) -> None:
    assert Memo.read(text) == Memo()


def test_a_memo_is_read_as_it_was_written() -> None:
    memo = Memo(session_id="s", ttl_ms=1, retrieval="r", asked={"key": ["a", 0]}, progress="p")
    assert Memo.read(str(memo)) == memo
    memo = Memo(session_id="", retrieval=0, progress=0)
    assert Memo.read(str(memo)) == memo
    assert Memo.read(str(Memo())) == Memo()


def test_a_task_without_a_usable_status_is_a_task_all_the_same() -> None:
    for status in ({}, {"status": 7}, {"status": ""}):
        assert created_task({"task": {"taskId": TASK, **status}}) == {"taskId": TASK, "status": "unknown"}


@pytest.mark.parametrize(
    ("created_at", "before"),
    [
        ("2026-11-21T10:00:00Z", True),
        ("2026-11-21T10:00:00", True),
        ("2026-11-21T12:00:01+01:00", False),
        ("yesterday", False),
        (None, False),
        ("0001-01-01T00:00:00+23:59", True),
        ("9999-12-31T23:59:59-23:59", False),
    ],
)
def test_a_task_is_older_than_a_call_only_if_it_says_so(created_at: str | None, before: bool) -> None:
    at = datetime(2026, 11, 21, 11, tzinfo=UTC).timestamp()
    assert created_before(created_at, at) is before


# ── questions ─────────────────────────────────────────────────────────────────────────────────


@requirement("law:3")
def test_the_same_question_is_one_however_often_and_wherever_it_is_asked() -> None:
    asked: Asked[str] = Asked()
    asked.add("here", 0, "elicitation/create", {**NAME, "_meta": {**MARK, "progressToken": 1}})
    asked.add("here", 0, "elicitation/create", {**NAME, "_meta": {**MARK, "progressToken": 2}})
    asked.add("there", "7", "elicitation/create", {**NAME, "_meta": MARK})
    ((key, _),) = asked.questions().items()
    assert asked.waiting(key) == [("here", 0), ("there", "7")]
    assert asked.request_ids() == {key: [0, "7"]}


def test_two_ids_that_look_alike_are_two() -> None:
    asked: Asked[str] = Asked()
    for request_id in (0, "0", 0.0):
        asked.add("here", request_id, "elicitation/create", NAME)
    assert [*asked.request_ids().values()] == [[0.0], ["0"]]


@requirement("law:3")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_question_that_was_answered_and_is_asked_once_more_is_a_new_one(restarted: bool) -> None:
    asked: Asked[str] = Asked()
    before: list[str] = []
    for number in range(3):
        if restarted:
            asked = Asked()
            asked.learn(before)
        asked.add("here", number, "elicitation/create", NAME)
        ((key, _),) = asked.questions().items()
        assert key not in before
        asked.answered(key, asked.behind(key))
        assert asked.was_answered(key)
        assert not asked.open
        before.append(key)


def test_a_question_that_comes_under_the_id_of_one_that_is_being_answered_stays_open() -> None:
    asked: Asked[str] = Asked()
    asked.add("here", 0, "elicitation/create", NAME)
    ((key, _),) = asked.questions().items()
    behind = asked.behind(key)
    asked.add("here", 0, "roots/list", {})  # the answer is on its way, and has been read
    asked.answered(key, behind)
    ((other, _),) = asked.questions().items()
    assert asked.waiting(other) == [("here", 0)]


def test_a_question_that_is_withdrawn_or_lost_is_open_no_more() -> None:
    asked: Asked[str] = Asked()
    asked.add("here", 0, "elicitation/create", NAME)
    asked.add("there", 0, "roots/list", {})
    asked.withdraw("here", 0)
    assert len(asked.questions()) == 1
    asked.lose("there")
    assert not asked.open


def test_a_request_that_comes_under_the_id_of_one_that_was_taken_back_is_not_taken_back() -> None:
    asked: Asked[str] = Asked()
    asked.add("here", 0, "elicitation/create", NAME)
    asked.withdraw("here", 0)
    assert asked.was_withdrawn("here", 0)
    assert not asked.was_withdrawn("here", "0")
    asked.add("here", 0, "elicitation/create", NAME)
    assert not asked.was_withdrawn("here", 0)


def test_a_server_that_asks_without_end_is_not_remembered_without_end() -> None:
    asked: Asked[str] = Asked()
    for request_id in range(1002):
        asked.add("here", request_id, "elicitation/create", {**NAME, "message": str(request_id)})
    asked.add("here", 0, "elicitation/create", NAME)
    messages = [question["params"]["message"] for question in asked.questions().values()]
    assert len(messages) == 1000
    assert NAME["message"] in messages, "an ID that is known can be given to another question"
    for request_id in range(2000):
        asked.add("here", request_id, "elicitation/create", NAME)
        asked.withdraw("here", request_id)
    assert [asked.was_withdrawn("here", request_id) for request_id in (999, 1000)] == [False, True]


def test_what_another_process_was_asked_is_open_unless_it_was_answered_since() -> None:
    asked: Asked[str] = Asked()
    asked.add("here", 0, "elicitation/create", NAME)
    ((key, question_),) = asked.questions().items()
    asked.answered(key, asked.behind(key))
    asked.restore("here", key, [0], question_)
    assert not asked.open
    other: Asked[str] = Asked()
    other.restore("here", key, [0], question_)
    assert other.waiting(key) == [("here", 0)]


@requirement("2025:tool-support")
@pytest.mark.parametrize("prefer", ["auto", "always", "never"])
@pytest.mark.parametrize("support", [None, "forbidden", "optional", "required"])
@pytest.mark.parametrize("makes_tasks", [True, False])
def test_a_task_is_asked_for_where_it_is_wished_for_and_can_be_had(
    prefer: Preference, support: str | None, makes_tasks: bool
) -> None:
    execution = {} if support is None else {"execution": {"taskSupport": support}}
    tool = Tool.model_validate({"name": "t", "inputSchema": {}, **execution}, by_name=False)
    wish, can_be_had = TaskWish(prefer=prefer), makes_tasks and support in ("optional", "required")
    if prefer == "always" and not can_be_had:
        with pytest.raises(MissingCapabilityError, match="was not called") as caught:
            wish.as_task("t", tool, makes_tasks)
        assert caught.value.not_executed
    else:
        assert wish.as_task("t", tool, makes_tasks) == (can_be_had and prefer != "never")
    assert not TaskWish().as_task("t", None, makes_tasks), "of an unlisted tool nothing is known"


@pytest.mark.parametrize("ttl_s", [0, -1.0, float("inf"), float("nan")])
def test_a_task_is_wished_for_some_time(ttl_s: float) -> None:
    with pytest.raises(ValueError, match="task_ttl_s must be more than 0"):
        TaskWish(ttl_s=ttl_s)
    assert TaskWish(ttl_s=0.0001).ttl_ms == 1


# ── hearing ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def hearing() -> Hearing:
    return Hearing(Callbacks(), LIMIT_S, lambda: None)


async def settled(until: Any) -> None:
    with anyio.fail_after(LIMIT_S):
        while not until():
            await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
@requirement("2025:input-required")
async def test_a_result_is_waited_for_by_one_request_that_ends_with_the_task(hearing: Hearing) -> None:
    peer = ScriptedPeer()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            for _ in range(2):
                tasks.start_soon(hearing.questions, peer, TASK, "of-the-dead")
            await settled(lambda: peer.requests)
            assert peer.taken_back == ["of-the-dead"], "it would take the next question along"
            ((method, request_id),) = peer.requests
            assert method == "tasks/result"
            assert hearing.hints.memo(peer, TASK).retrieval == request_id
            hearing.forget(TASK)
            await anyio.wait_all_tasks_blocked()
            assert peer.cancelled, "nobody is told, and a connection is free"
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("stopped", [True, False], ids=["our-client-closes", "our-client-goes-on"])
async def test_over_a_hosts_session_the_last_reply_is_waited_for_and_not_taken_back(
    hearing: Hearing, stopped: bool
) -> None:
    peer = ScriptedPeer()
    peer.retracts, peer.reply = True, {}
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            hearing.forget(TASK)
            if stopped:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await anyio.wait_all_tasks_blocked()
            peer.go.set()
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert not peer.cancelled


@pytest.mark.anyio
@pytest.mark.parametrize("long_s", [0, 60])
async def test_over_a_hosts_session_too_it_is_heard_on_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, long_s: int
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", long_s)
    peer = ScriptedPeer()
    peer.retracts = True
    session = CoreTasksSession(
        lambda session_id, told: peer,
        endpoint="e",
        inputs=Callbacks(),
        client_info={},
        limits=LIMITS,
        wish=TaskWish(),
    )
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.watch, list[Task]().append)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(session._hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            session.let_go(TASK)
            if long_s:
                await anyio.sleep(0.1)
                assert not peer.cancelled
            else:
                await settled(lambda: peer.cancelled)
            tasks.cancel_scope.cancel()
    assert session._hearing.hints.heard is None, "the host's session may outlive us, and say more"


@pytest.mark.anyio
async def test_who_asks_for_no_task_gets_a_reply_whatever_becomes_of_the_question() -> None:
    class Broken(Callbacks):
        async def answer(self, context: Any, request: Any) -> Any:
            raise RuntimeError("a secret of the host's")

    peer, hearing = ScriptedPeer(), Hearing(Broken(), LIMIT_S, lambda: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hearing.run)
        await anyio.wait_all_tasks_blocked()
        hearing.told(peer, {"id": 7, "method": "elicitation/create", "params": NAME})
        await settled(lambda: peer.answers)
        tasks.cancel_scope.cancel()
    assert peer.answers == [(7, RpcError(-32603, "The client has no answer", None))]


@pytest.mark.anyio
@pytest.mark.parametrize("unreachable", [True, False])
async def test_a_question_waits_no_longer_than_what_comes_before_it(
    hearing: Hearing, unreachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = ScriptedPeer()

    async def unheard(request_id: RequestId, timeout_s: float) -> None:
        await anyio.lowlevel.checkpoint()
        raise ConnectionLostError("down", retryable=True)

    if unreachable:
        monkeypatch.setattr(peer, "take_back", unheard)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hearing.run)
        await anyio.wait_all_tasks_blocked()
        hearing.told(peer, question())
        with anyio.fail_after(LIMIT_S / 2):  # the whole of it is what may be waited for a peer that hangs
            assert await hearing.questions(peer, TASK, "of-the-dead")
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_over_a_hosts_session_a_last_reply_that_never_comes_is_not_waited_for_for_ever(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrieval._LAST_REPLY_S", 0.05)
    peer = ScriptedPeer()
    peer.retracts = True
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            hearing.forget(TASK)
            tasks.cancel_scope.cancel()
    assert peer.cancelled == 1


@pytest.mark.anyio
async def test_a_wait_that_broke_is_taken_back_before_the_next(hearing: Hearing) -> None:
    peer, told = ScriptedPeer(), list[Task]()
    hearing.hints.heard = told.append
    hearing.saw(peer, {"taskId": TASK, "status": "working", "ttlMs": 60_000, "pollIntervalMs": 60_000})
    peer.reply = ConnectionLostError("broken", retryable=True)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            peer.go.set()
            await settled(lambda: hearing.retrievals.failures.lately(TASK))
            first, second = (request_id for _, request_id in peer.requests)
            assert peer.taken_back == [first], "the next one goes at once, and only that"
            assert hearing.hints.memo(peer, TASK).retrieval == second, (
                "another process must take it back as well"
            )
            assert [Memo.read(task.request_state).retrieval for task in told] == [first, second], "and can"
            peer.go = anyio.Event()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: len(peer.requests) == 3)
            assert peer.taken_back == [first, second]
            tasks.cancel_scope.cancel()


@requirement("law:3")
@pytest.mark.parametrize(
    "meanwhile", ["nothing", "taken back", "given away", "answered elsewhere", "lost again"]
)
def test_what_a_connection_had_asked_that_was_not_gone_after_all_is_asked_again(meanwhile: str) -> None:
    asked: Asked[str] = Asked()
    asked.add("one", 1, "elicitation/create", NAME)
    (key,) = asked.questions()
    asked.add("two", 1, "elicitation/create", NAME)
    asked.lose("one")
    match meanwhile:
        case "taken back":
            asked.withdraw("one", 1)
        case "given away":
            asked.given_away("one", 1)
        case "answered elsewhere":
            asked.answered(key, asked.behind(key))
        case "lost again":
            asked.lose("one")
    asked.find("three")
    before = asked.request_ids()
    asked.find("one")
    more = meanwhile in ("nothing", "answered elsewhere", "lost again")
    assert sum(map(len, asked.request_ids().values())) == sum(map(len, before.values())) + more
    if meanwhile == "answered elsewhere":
        assert list(asked.questions()) == [f"{key}#1"], "it came back, and so it is another one"


@requirement("law:3")
def test_what_is_asked_over_a_connection_that_is_gone_adds_to_what_was() -> None:
    asked: Asked[str] = Asked()
    for request_id, question in enumerate((NAME, {**NAME, "message": "And yours?"})):
        asked.add("one", request_id, "elicitation/create", question)
        asked.lose("one")
    asked.find("one")
    assert sorted(map(str, asked.request_ids().values())) == ["[0]", "[1]"]


@pytest.mark.anyio
@requirement("law:3")
@pytest.mark.parametrize("ended_by", ["a proxy", "us"])
async def test_a_wait_that_lasted_is_renewed_at_once_whenever_it_breaks(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    monkeypatch.setattr(retrievals, "_LASTED_S", 0.0)
    monkeypatch.setattr(retrievals, "SILENCE_S", 3600.0 if ended_by == "a proxy" else 0.0)
    monkeypatch.setattr(retrievals, "_PAUSE_S", 0.0)
    peer = ScriptedPeer()
    peer.reply = ConnectionLostError("broken", retryable=True)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            streams = set()
            for times in range(1, 4):
                await settled(lambda times=times: len(peer.requests) == times)
                streams.add(hearing.retrievals.stream(TASK))
                peer.go.set()
                peer.go = anyio.Event()
            await settled(lambda: len(peer.requests) == 4)
            assert peer.taken_back == [request_id for _, request_id in peer.requests[:3]]
            assert len(streams) == (3 if ended_by == "a proxy" else 1), "on the way something may be lost"
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:3")
@pytest.mark.parametrize(
    ("error", "lasted", "renewed"),
    [
        (SessionError("ended early", retryable=True, http_status=200), False, True),
        (SessionError("busy", retryable=True, http_status=503), False, False),
        (SessionError("gateway timeout", retryable=True, http_status=504), True, True),
        (SessionError("busy", retryable=True, http_status=503, retry_after_s=1.0), True, False),
        (SessionError("no", code=-32603, http_status=200), True, False),
    ],
)
async def test_a_wait_that_may_go_on_at_the_server_is_renewed_at_once(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, error: SessionError, lasted: bool, renewed: bool
) -> None:
    monkeypatch.setattr(retrievals, "_LASTED_S", 0.0 if lasted else 3600.0)
    peer = ScriptedPeer()
    peer.reply = error
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            go, peer.go = peer.go, anyio.Event()
            go.set()
            if renewed:
                await settled(lambda: len(peer.requests) == 2)
            else:
                await settled(lambda: hearing.retrievals.failures.lately(TASK))
                assert len(peer.requests) == 1
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:4")
@pytest.mark.parametrize("lasting_s", [0.0, 0.25])
async def test_waits_that_end_soon_again_and_again_are_renewed_ever_more_slowly(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, lasting_s: float
) -> None:
    monkeypatch.setattr(retrievals, "_LASTED_S", 0.0)
    monkeypatch.setattr(retrievals, "_PAUSE_S", 0.2)
    peer = ScriptedPeer()
    peer.reply = SessionError("ended", retryable=True, http_status=200)
    peer.go.set()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            peer.lasting_s = lasting_s
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: len(peer.requests) == 2)
            begun = anyio.current_time()
            await settled(lambda: len(peer.requests) == 4)
            took_s = anyio.current_time() - begun
            assert (took_s >= 0.2 + 0.4) if lasting_s == 0 else (took_s < 2 * lasting_s + 0.2)
            if lasting_s == 0:  # the next pause is one of 0.8 s
                await anyio.sleep(0.1)
                begun = anyio.current_time()
                tasks.start_soon(hearing.questions, peer, TASK, None)
                await settled(lambda: len(peer.requests) == 5)
                assert anyio.current_time() < begun + 0.5, "a poll says that there is a question"
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:3", "law:8")
@pytest.mark.parametrize("ends", ["let go of", "closed", "over", "cancelled", "taken back by itself"])
async def test_who_stops_to_wait_in_good_order_has_the_wait_taken_back(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", 0.0)
    peer = ScriptedPeer()
    peer.retracts = ends == "taken back by itself"
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            if (
                ends == "cancelled"
            ):  # by which the server ends it, and one SDK the session if it is taken back then
                hearing.give_up(TASK)
            elif ends != "closed":
                (hearing.forget if ends == "over" else hearing.leave)(TASK)
                if ends == "let go of":
                    await settled(lambda: peer.taken_back)
                await anyio.wait_all_tasks_blocked()
                assert len(peer.taken_back) == (ends == "let go of")
            tasks.cancel_scope.cancel()
    taken_back = [request_id for _, request_id in peer.requests] if ends in ("let go of", "closed") else []
    assert peer.taken_back == taken_back, "the server would hand the next question to it"


@pytest.mark.anyio
@requirement("law:3", "law:8")
@pytest.mark.parametrize("then", ["observed again", "over", "broken", "its time is over", "left once more"])
async def test_a_wait_is_heard_on_for_a_moment_when_nobody_observes_its_task_any_more(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """One official server loses the question that it is about to send, when it is taken back."""
    long_s = 0.3 if then in ("observed again", "its time is over") else 60.0
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", long_s)
    peer, retrievals = ScriptedPeer(), hearing.retrievals
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            first = peer.requests[0][1]
            hearing.leave(TASK)
            await anyio.wait_all_tasks_blocked()
            hearing.told(peer, question())
            assert (peer.cancelled, peer.taken_back) == (0, [])
            if then == "observed again":
                retrievals.looked(TASK)
                assert await hearing.questions(peer, TASK, None)
                assert len(peer.requests) == 1
                await anyio.sleep(2 * long_s)
                assert retrievals.request_id(TASK) == first
                peer.reply = ConnectionLostError("cut", retryable=True)
                peer.go.set()
                await settled(lambda: len(peer.requests) > 1)  # as ever
            elif then == "its time is over":
                await settled(lambda: peer.taken_back)
                assert peer.taken_back == [first]
            elif then == "left once more":
                monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", 0.0)
                retrievals.observed(TASK)
                hearing.leave(TASK)
                await settled(lambda: peer.taken_back)
                assert len(peer.taken_back) == 1
            else:
                peer.reply = {} if then == "over" else ConnectionLostError("cut", retryable=True)
                peer.go.set()
                await settled(lambda: not retrievals._now)
                await anyio.wait_all_tasks_blocked()
                assert len(peer.requests) == 1, "nobody waits for another one"
                assert retrievals.request_id(TASK) == (first if then == "broken" else None)
            await settled(lambda: not retrievals._unobserved)
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def waited_for(hearing: Hearing, peer: ScriptedPeer) -> AsyncIterator[TaskGroup]:
    """A task waits for an answer, and a ``tasks/result`` for what it asks, until the block ends."""
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            hearing.saw(peer, {"taskId": TASK, "status": "input_required"})
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            yield tasks
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:1", "law:3")
@pytest.mark.parametrize("then", ["nobody observes it", "observed while it is taken back", "left again"])
async def test_of_a_task_that_nobody_observes_is_told_until_nothing_is_heard_of_it(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", 60.0)
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_S", 0.1)
    peer, told = ScriptedPeer(), list[Task]()
    hearing.hints.heard = told.append
    async with waited_for(hearing, peer):
        unheard = hearing.leave(TASK)
        assert unheard is not None
        told.clear()
        hearing.told(peer, question())
        assert told
        assert not unheard.is_set()
        monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", 0.0)
        before, unheard = unheard, hearing.leave(TASK)
        assert before.is_set()
        assert unheard is not None
        await settled(lambda: peer.taken_back)
        if then != "nobody observes it":
            hearing.retrievals.looked(TASK)
            assert unheard.is_set()
            await hearing.questions(peer, TASK, None)
            await settled(lambda: len(peer.requests) == 2)
            if then == "left again":
                monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", 60.0)
                assert hearing.leave(TASK) is not None
            await settled(lambda: peer.cancelled)
        await unheard.wait()
        await anyio.wait_all_tasks_blocked()
        assert bool(hearing.hints.seen) == (then != "nobody observes it")
        assert bool(hearing.retrievals._unobserved) == (then == "left again")


@pytest.mark.anyio
@requirement("law:3", "law:8")
@pytest.mark.parametrize("how", ["let go of", "closed", "everything ends", "it is over meanwhile"])
async def test_a_wait_is_not_taken_back_before_it_has_arrived(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """They go over two connections, and what is taken back too early waits all the same, for nobody."""
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_S", 0.05)
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", 0.0)
    if how == "it is over meanwhile":
        for name in ("_ARRIVES_S", "_LATEST_ARRIVAL_S"):
            monkeypatch.setattr(f"mcp_tasks_client.old.sessions.retrieval.{name}", 3600.0)
    peer, taken_back_at = ScriptedPeer(), list[float]()
    take_back = peer.take_back

    async def timed(request_id: RequestId, timeout_s: float) -> None:
        taken_back_at.append(anyio.current_time())
        await take_back(request_id, timeout_s)

    monkeypatch.setattr(peer, "take_back", timed)
    async with waited_for(hearing, peer):
        retrieval = hearing.retrievals._now[TASK]
        if how == "closed":
            await hearing.retrievals.retire()
        elif how != "everything ends":
            assert hearing.leave(TASK) is not None
            await anyio.wait_all_tasks_blocked()
        if how == "it is over meanwhile":
            peer.reply = {}
            peer.go.set()
        if how != "everything ends":
            await settled(lambda: not hearing.retrievals._going)
    assert [at - retrieval.sent_at >= 0.1 for at in taken_back_at] == [True] * (how != "it is over meanwhile")
    assert not hearing.retrievals._left


@pytest.mark.anyio
@requirement("law:1", "law:3", "law:8")
async def test_of_a_task_that_is_let_go_of_as_its_wait_is_taken_back_is_told_until_nothing_is_heard(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a client is closed while the journal takes its time with a creation."""
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_S", 0.05)
    peer, told, go = ScriptedPeer(), list[Task](), anyio.Event()
    take_back = peer.take_back

    async def slowly(request_id: RequestId, timeout_s: float) -> None:
        await go.wait()
        await take_back(request_id, timeout_s)

    monkeypatch.setattr(peer, "take_back", slowly)
    hearing.hints.heard = told.append
    async with waited_for(hearing, peer) as tasks:
        tasks.start_soon(hearing.retrievals.retire)
        await anyio.wait_all_tasks_blocked()
        unheard = hearing.leave(TASK)
        assert unheard is not None
        told.clear()
        hearing.told(peer, question())
        assert told
        assert not unheard.is_set()
        go.set()
        await unheard.wait()
        assert len(peer.taken_back) == 1
        await settled(lambda: not (hearing.hints.seen or hearing.retrievals._going))


@pytest.mark.anyio
@requirement("law:3", "law:8")
@pytest.mark.parametrize("ends", ["as it is taken back", "by a cut", "never"])
async def test_what_the_server_says_until_it_knows_that_nobody_waits_is_heard(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_S", 0.1)
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", 0.0)
    peer, then = ScriptedPeer(), list[int]()
    take_back = peer.take_back

    async def asks_before_it_knows(request_id: RequestId, timeout_s: float) -> None:
        then.append(peer.cancelled)
        hearing.told(peer, question())
        await take_back(request_id, timeout_s)
        if ends != "never":
            cut = ConnectionLostError("cut", retryable=True)
            peer.reply = cut if ends == "by a cut" else SessionError("Request cancelled", code=0)
            peer.go.set()

    monkeypatch.setattr(peer, "take_back", asks_before_it_knows)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            hearing.leave(TASK)
            await settled(lambda: peer.taken_back)
            assert then == [0], "its stream is read meanwhile"
            if ends == "never":
                await settled(lambda: peer.cancelled)
            await settled(lambda: not hearing.retrievals._left)
            await anyio.wait_all_tasks_blocked()
            assert hearing.asked(TASK).questions()
            assert len(peer.taken_back) == 1
            assert len(peer.requests) == 1, "none takes its place"
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:1", "law:3", "law:8")
async def test_what_is_asked_in_the_words_of_what_was_answered_is_told_as_another_though_nobody_observes_it(
    hearing: Hearing,
) -> None:
    peer, told = ScriptedPeer(), list[Task]()
    hearing.hints.heard = told.append
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            hearing.saw(peer, {"taskId": TASK, "status": "input_required"})
            hearing.told(peer, question(request_id=1))
            (key,) = await hearing.questions(peer, TASK, None)
            hearing.asked(TASK).answered(key, hearing.asked(TASK).behind(key))
            assert hearing.leave(TASK) is not None
            hearing.told(peer, question(request_id=2))
            assert list(told[-1].input_requests or {}) == [f"{key}#1"]
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:3", "law:8")
async def test_at_the_end_none_waits_any_more_nor_begins_to(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_S", 0.01)
    peer, refusing, retrievals = ScriptedPeer(), ScriptedPeer(), hearing.retrievals
    refusing.refuses_to_take_back = True
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            tasks.start_soon(hearing.questions, refusing, "another", None)
            tasks.start_soon(hearing.questions, peer, "cancelled", None)
            await settled(lambda: len(peer.requests) == 2 and refusing.requests)
            assert hearing.leave(TASK) is not None
            retrievals.expect_end("cancelled")
            await retrievals.retire()
            assert len(peer.taken_back) == 1, "one official server loses the session by the other one"
            assert not retrievals.may_begin(TASK)
            assert not retrievals.may_begin("a third")
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:3")
async def test_what_has_not_begun_to_wait_does_not_begin_when_it_is_let_go_of(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", 0.0)
    peer, go = ScriptedPeer(), anyio.Event()
    take_back = peer.take_back

    async def slowly(request_id: RequestId, timeout_s: float) -> None:
        await go.wait()
        await take_back(request_id, timeout_s)

    monkeypatch.setattr(peer, "take_back", slowly)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, "of the process before")
            await anyio.wait_all_tasks_blocked()
            hearing.leave(TASK)
            await settled(lambda: hearing.retrievals._left)
            go.set()
            await settled(lambda: peer.taken_back)
            await anyio.wait_all_tasks_blocked()
            assert peer.requests == []
            assert {*peer.taken_back} == {"of the process before"}
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_task_that_needs_something_before_it_is_known_is_waited_for_once_it_is(
    hearing: Hearing,
) -> None:
    peer = ScriptedPeer()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            for task_id, status in (("other", "working"), (TASK, "input_required"), (7, "input_required")):
                params = {"taskId": task_id, "status": status, "ttl": None}
                hearing.told(peer, {"method": "notifications/tasks/status", "params": params})
            for task_id in ("other", TASK, TASK):
                hearing.saw(peer, {"taskId": task_id, "status": "working"})
            await settled(lambda: peer.requests)
            assert len(peer.requests) == 1
            assert hearing.retrievals.request_id(TASK) == peer.requests[0][1]
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:1", "law:8")
async def test_what_has_no_answer_is_told_of_to_who_asks(hearing: Hearing) -> None:
    peer = ScriptedPeer()
    hearing.told(peer, question(request_id=7))
    assert hearing.hints.latest(TASK) is None, "of a task that nobody has heard of"
    hearing.saw(peer, {"taskId": TASK, "status": "working"})
    task = hearing.hints.latest(TASK)
    assert task is not None
    assert task.status == "input_required"
    (key,) = task.input_requests or {}
    assert Memo.read(task.request_state) == Memo(session_id="s", asked={key: [7]})
    hearing.asked(TASK).answered(key, hearing.asked(TASK).behind(key))
    assert hearing.hints.latest(TASK) is None
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_a_wait_for_a_task_that_was_cancelled_ends_by_itself_when_it_is_let_go_of(
    hearing: Hearing,
) -> None:
    peer = ScriptedPeer()
    peer.retracts = True  # by being given up alone
    peer.reply = {}
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            hearing.give_up(TASK)
            hearing.leave(TASK)
            await anyio.wait_all_tasks_blocked()
            assert peer.cancelled == 0, "the server ends it just now"
            peer.go.set()
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:4")
async def test_what_is_refused_at_once_after_a_pause_has_not_lasted(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrievals, "_LASTED_S", 0.1)
    monkeypatch.setattr(retrievals, "_PAUSE_S", 0.2)
    peer = ScriptedPeer()
    peer.reply, peer.lasting_s = SessionError("ended", retryable=True, http_status=200), 0.15
    peer.go.set()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: len(peer.requests) == 2)
            await anyio.sleep(0.05)  # this one lasts as long as the first
            peer.reply, peer.lasting_s = SessionError("busy", retryable=True, http_status=404), 0.0
            await settled(lambda: hearing.retrievals.failures.lately(TASK))
            assert len(peer.requests) == 3
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:3")
async def test_what_is_told_of_progress_takes_nothing_from_the_next_process(hearing: Hearing) -> None:
    peer, told = ScriptedPeer(), list[Task]()
    hearing.hints.heard = told.append
    token = hearing.progress.announce({}, peer.session_id, ours=True)
    hearing.progress.expect(token, TASK, peer.session_id)
    hearing.saw(
        peer, {"taskId": TASK, "status": "working", "requestState": str(hearing.hints.memo(peer, TASK))}
    )
    hearing.told(peer, question())
    progress = {"progressToken": token, "progress": 1}
    hearing.told(peer, {"method": "notifications/progress", "params": progress})
    assert told[-1].progress == {"progress": 1}
    asked = [Memo.read(task.request_state).asked for task in told]
    assert asked == [hearing.hints.memo(peer, TASK).asked] * 2
    assert asked[0]


@pytest.mark.anyio
@requirement("law:2", "law:3")
async def test_a_question_that_comes_before_its_task_is_told_before_the_first_poll(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.hints._INSIST_S", 0.01)
    peer, told = ScriptedPeer(), list[Task]()
    hearing.hints.heard = told.append
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            hearing.told(peer, question())
            await anyio.sleep(0.05)
            assert told == [], "nobody knows the task yet"
            hearing.saw(peer, {"taskId": TASK, "status": "working"})
            await settled(lambda: len(told) >= 2)  # the first may come before anybody observes it
            assert told[-1].input_requests
            hearing.saw(peer, {"taskId": TASK, "status": "input_required"})
            await settled(lambda: not hearing.hints.insisting)
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("2025:input-required")
async def test_it_is_told_once_that_a_server_waits_for_an_answer_to_nothing(
    hearing: Hearing, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.hearing._QUESTION_S", 0.0)
    peer = ScriptedPeer()
    with anyio.fail_after(LIMIT_S):
        for look in range(12):
            if look == 4:
                hearing.told(peer, question())
            await hearing.questions(peer, TASK, None)
            if look == 4:
                hearing.asked(TASK).withdraw(peer, 0)
            assert ("has asked nothing" in caplog.text) is (look >= 9), "five looks in a row"
    assert caplog.text.count("has asked nothing") == 1


@pytest.mark.anyio
@requirement("law:3")
async def test_a_question_is_waited_for_longer_where_the_server_is_far_away(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it asks under an ID now has to be known before an answer to something older goes there."""
    monkeypatch.setattr("mcp_tasks_client.old.sessions.hearing._QUESTION_S", 0.0)
    waited: list[float] = []
    for took_s in (0.0, 0.1, 9.0):
        hearing.asked(TASK)
        hearing.retrievals.looked(TASK, took_s)
        begun = anyio.current_time()
        monkeypatch.setattr("mcp_tasks_client.old.sessions.hearing._LONGEST_QUESTION_S", 0.3)
        with anyio.fail_after(LIMIT_S):
            await hearing.next_question(TASK)
        waited.append(anyio.current_time() - begun)
    assert waited == [pytest.approx(seconds, abs=0.09) for seconds in (0.0, 0.2, 0.3)]


@pytest.mark.anyio
@requirement("law:4")
async def test_the_longest_time_that_a_server_wants_to_be_left_alone_counts(hearing: Hearing) -> None:
    for seconds in (0.5, 0.0):
        hearing.retrievals.pauses.quiet(TASK, seconds)
    assert not hearing.retrievals.may_begin(TASK)
    with anyio.fail_after(LIMIT_S):
        while not hearing.retrievals.may_begin(TASK):
            await anyio.sleep(0.05)


@pytest.mark.anyio
@requirement("law:3")
async def test_what_could_not_be_taken_back_is_taken_back_by_the_next(hearing: Hearing) -> None:
    peer = ScriptedPeer()
    peer.refuses_to_take_back = True
    peer.memo = lambda: hearing.hints.memo(peer, TASK)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            assert await hearing.questions(peer, TASK, "of-the-dead") == {}
            assert peer.memo_then is not None
            for memo in (peer.memo_then, hearing.hints.memo(peer, TASK)):
                assert memo.retrieval == "of-the-dead", "also by another process"
            assert peer.requests == []
            peer.refuses_to_take_back = False
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda: peer.requests)
            assert peer.taken_back == ["of-the-dead"]
            assert hearing.hints.memo(peer, TASK).retrieval == peer.requests[0][1]
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("2025:any-stream", "law:3")
async def test_a_question_is_told_at_once_with_all_that_another_process_would_need(hearing: Hearing) -> None:
    peer, told = ScriptedPeer(), list[Task]()
    hearing.hints.heard = told.append
    hearing.told(peer, question(request_id=7))
    assert told == [], "of a task that nobody has heard of"
    hearing.saw(peer, {"taskId": TASK, "status": "working"})
    hearing.told(peer, question(request_id=7))
    (task,) = told
    assert task.status == "input_required"
    assert task.input_requests is not None
    ((key, _),) = task.input_requests.items()
    assert Memo.read(task.request_state) == Memo(session_id="s", asked={key: [7]})
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
@requirement("2025:any-stream", "law:3")
@pytest.mark.parametrize("until", ["a poll", "its answer"])
async def test_a_question_is_told_again_to_who_begins_to_listen_only_then(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.hints._INSIST_S", 0.01)
    peer, told, insists = ScriptedPeer(), list[Task](), 0
    insist = hearing.hints._insist

    async def counted(*args: Any) -> None:
        nonlocal insists
        insists += 1
        await insist(*args)

    monkeypatch.setattr(hearing.hints, "_insist", counted)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            hearing.saw(peer, {"taskId": TASK, "status": "working", "ttlMs": None})
            hearing.told(peer, question(request_id=7))
            hearing.told(peer, question(request_id=8))
            await anyio.sleep(0.02)
            hearing.hints.heard = told.append
            while len(told) < 2:
                await anyio.sleep(0.01)
            assert {len(task.input_requests or {}) for task in told} == {2}
            asked = hearing.asked(TASK)
            if until == "a poll":
                hearing.saw(peer, {"taskId": TASK, "status": "input_required", "ttlMs": None})
            else:
                for key in asked.questions():
                    asked.answered(key, asked.behind(key))
            while hearing.hints.insisting:
                await anyio.sleep(0.01)
            assert all(task.input_requests for task in told)
            assert insists == 1
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@requirement("law:1", "law:3")
async def test_what_waits_for_a_question_is_told_again_to_who_begins_to_listen_only_then(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server says that it needs an answer, and asks later. Until a poll nobody else tells of it.
    monkeypatch.setattr("mcp_tasks_client.old.sessions.hints._INSIST_S", 0.01)
    peer, told = ScriptedPeer(), list[Task]()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            hearing.saw(peer, {"taskId": TASK, "status": "working", "ttlMs": None})
            status = {"taskId": TASK, "status": "input_required", "ttl": None}
            hearing.told(peer, {"method": "notifications/tasks/status", "params": status})
            await settled(lambda: peer.requests)
            hearing.hints.heard = told.append
            while not told:
                await anyio.sleep(0.01)
            assert (told[0].status, told[0].input_requests) == ("working", None), "as it was seen"
            assert Memo.read(told[0].request_state).retrieval == peer.requests[0][1]
            hearing.saw(peer, {"taskId": TASK, "status": "working", "ttlMs": None})
            while hearing.hints.insisting:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_status_is_told_with_what_another_process_would_need(hearing: Hearing) -> None:
    peer, told = ScriptedPeer(), list[Task]()
    hearing.hints.heard = told.append
    hearing.saw(peer, {"taskId": TASK, "status": "working", "ttlMs": None})
    status = {"taskId": TASK, "status": "working", "ttl": None, "statusMessage": "half of it"}
    hearing.told(peer, {"method": "notifications/tasks/status", "params": status})
    assert [task.status_message for task in told] == ["half of it"]
    assert Memo.read(told[0].request_state) == Memo(session_id="s")
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
@requirement("law:3", "law:7")
@pytest.mark.parametrize("refuses", [False, True])
async def test_what_waits_in_a_session_that_seems_lost_takes_no_question_if_that_is_found_again(
    hearing: Hearing, refuses: bool
) -> None:
    lost, other, retrievals = ScriptedPeer(), ScriptedPeer("other"), hearing.retrievals
    lost.refuses_to_take_back = refuses
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            first = retrievals.begin(lost, TASK, None)
            tasks.start_soon(retrievals.run, TASK, first)
            await settled(lambda: lost.requests)
            retrievals.answered_in(other, TASK)
            await settled(first.alone.is_set)
            await settled(lambda: refuses or lost.taken_back)
            assert retrievals.begin(other, TASK, None).before is None
            retrievals.answered_in(lost, TASK)
            again = retrievals.begin(lost, TASK, "of the process before")
            assert again.before == first.request_id
            retrievals.forget(TASK)
            assert retrievals.begin(other, TASK, None).before is None


@pytest.mark.anyio
@requirement("law:3")
async def test_what_is_told_of_a_question_that_was_answered_once_before_goes_by_its_new_name(
    hearing: Hearing,
) -> None:
    peer, told = ScriptedPeer(), list[Task]()
    hearing.hints.heard = told.append
    hearing.saw(peer, {"taskId": TASK, "status": "working"})
    hearing.told(peer, question(request_id=1))
    (once,) = hearing.asked(TASK).questions()
    hearing.lose(peer)
    hearing.asked(TASK).learn([once])  # by another process
    hearing.told(peer, question(request_id=2))
    hearing.told(peer, question(request_id=3, message="Colour?"))
    task = told[-1]
    assert task.input_requests is not None
    again, other = task.input_requests
    assert again == f"{once}#1"
    assert Memo.read(task.request_state).asked == {again: [2], other: [3]}
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
@requirement("law:3")
@pytest.mark.parametrize("by", ["another task", "a plain request"])
async def test_an_id_that_is_given_away_is_no_question_s_any_more(hearing: Hearing, by: str) -> None:
    peer, mark = ScriptedPeer(), {RELATED_TASK: {"taskId": "another"}} if by == "another task" else {}
    hearing.told(peer, question(request_id=5))
    hearing.told(ScriptedPeer("another"), question(request_id=6))
    hearing.told(peer, question(request_id=6, message="Delete everything?", _meta=mark))
    assert hearing.asks(TASK), "an ID of another session is another"
    hearing.told(peer, question(request_id=5, message="Delete everything?", _meta=mark))
    (left,) = hearing.asked(TASK).request_ids().values()
    assert left == [6]
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_what_has_come_under_which_id_is_not_kept_without_end(hearing: Hearing) -> None:
    peer, other = ScriptedPeer(), ScriptedPeer("other")
    for number in range(10_001):
        hearing.told(peer, {"id": number, "method": "ping"})
    assert hearing.ids.may_be(peer, 0, TASK, NAME)
    assert not hearing.ids.may_be(peer, 10_000, TASK, NAME)
    hearing.told(other, {"id": 0, "method": "ping"})
    hearing.lose(peer)
    assert [name[0] for name in hearing.ids._requests] == [other], "nor a session that is gone"
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
@requirement("law:3")
async def test_what_a_cancelled_task_asks_has_its_id_all_the_same(hearing: Hearing) -> None:
    peer = ScriptedPeer()
    hearing.told(peer, question(request_id=5))
    hearing.give_up("cancelled")
    hearing.told(peer, question(request_id=5, _meta={RELATED_TASK: {"taskId": "cancelled"}}))
    assert not hearing.asks(TASK)
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_a_plain_question_that_comes_twice_is_asked_once_and_answered_once() -> None:
    asked, going = list[str](), anyio.Event()

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        await going.wait()
        return ElicitResult(action="decline")

    peer, hearing = ScriptedPeer(), Hearing(Callbacks(elicitation=ask), LIMIT_S, lambda: None)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            for _ in range(2):
                hearing.told(peer, question(request_id=5, _meta={}))
                await settled(lambda: asked)
            going.set()
            await settled(lambda: peer.answers)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert len(asked) == 1
    assert [request_id for request_id, _ in peer.answers] == [5]


@pytest.mark.anyio
@requirement("law:3")
@pytest.mark.parametrize("by", ["another request", "a withdrawal"])
async def test_a_plain_question_whose_id_is_given_away_is_not_answered(by: str) -> None:
    asked, withdrawn, going = list[str](), list[str](), anyio.Event()

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        try:
            await (going.wait() if params.message == "A?" else anyio.sleep_forever())
        except anyio.get_cancelled_exc_class():
            withdrawn.append(params.message)
            raise
        return ElicitResult(action="decline")

    peer, hearing = ScriptedPeer(), Hearing(Callbacks(elicitation=ask), LIMIT_S, lambda: None)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            hearing.told(peer, question(request_id=5, message="A?", _meta={}))
            await settled(lambda: asked)
            if by == "a withdrawal":
                hearing.told(peer, {"method": "notifications/cancelled", "params": {"requestId": 5}})
            else:
                hearing.told(peer, question(request_id=5, message="Delete everything?", _meta={}))
                await settled(lambda: len(asked) == 2)
            await settled(lambda: withdrawn)
            assert withdrawn == ["A?"], "nobody is to fill in what goes nowhere"
            going.set()
            hearing.told(peer, {"id": 6, "method": "ping"})
            await settled(lambda: peer.answers)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert [request_id for request_id, _ in peer.answers] == [6]


@pytest.mark.anyio
async def test_what_is_asked_of_a_task_that_was_given_up_is_not_heard(hearing: Hearing) -> None:
    peer = ScriptedPeer()
    hearing.give_up(TASK)
    hearing.told(peer, question())
    assert not hearing.asks(TASK)
    assert await hearing.questions(peer, TASK, None) == {}
    assert peer.requests == []


@pytest.mark.anyio
async def test_what_is_asked_for_no_task_is_answered_here_and_the_rest_refused(hearing: Hearing) -> None:
    peer = ScriptedPeer()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            hearing.told(peer, {"id": 0, "method": "ping"})
            hearing.told(peer, {"id": 1, "method": "elicitation/create", "params": NAME})
            hearing.told(peer, {"id": 2, "method": "other/thing"})
            await settled(lambda: len(peer.answers) == 3)
            tasks.cancel_scope.cancel()
    answers = dict(peer.answers)
    assert answers[0] == {}
    assert isinstance(answers[1], RpcError)
    assert "no elicitation callback" in answers[1].message
    assert answers[2] == RpcError(-32601, "Method not found", None)


@pytest.mark.anyio
async def test_what_goes_wrong_on_a_stream_ends_nothing_else(
    hearing: Hearing, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ScriptedPeer):
        async def listen(self) -> None:
            raise RuntimeError("an auth flow's own")

        async def request(self, *args: Any, **options: Any) -> JSONObject:
            raise RuntimeError("an auth flow's own")

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            hearing.saw(Broken(), {"taskId": TASK, "status": "working"})
            tasks.start_soon(hearing.questions, Broken(), TASK, None)
            await settled(lambda: caplog.text.count("RuntimeError: an auth flow's own") == 2)
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("said", [{"id": 1, "method": []}, {"id": 10**400, "method": "ping"}, "deep"])
async def test_what_cannot_be_read_is_passed_over(hearing: Hearing, said: Any) -> None:
    peer = ScriptedPeer()
    if said == "deep":
        nested: list[Any] = []
        for _ in range(5000):
            nested = [nested]
        said = question(nested=nested)
    hearing.told(peer, said)
    hearing.told(peer, question())
    assert hearing.asks(TASK)
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_questions_for_tasks_that_nobody_knows_do_not_pile_up(hearing: Hearing) -> None:
    peer = ScriptedPeer()
    for number in range(2000):
        mark = {RELATED_TASK: {"taskId": f"strange-{number}"}}
        hearing.told(peer, question(request_id=number, _meta=mark))
    assert hearing.asks("strange-0")
    assert not hearing.asks("strange-1999")
    hearing.saw(peer, {"taskId": TASK, "status": "working"})
    hearing.told(peer, question())
    assert hearing.asks(TASK)
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_a_request_that_is_cancelled_is_open_no_more(hearing: Hearing) -> None:
    peer = ScriptedPeer()
    hearing.told(peer, question(request_id=0))
    assert hearing.asks(TASK)
    hearing.told(peer, {"method": "notifications/cancelled", "params": {"requestId": 0}})
    assert not hearing.asks(TASK)
    await anyio.lowlevel.checkpoint()
