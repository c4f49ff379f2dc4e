"""That nothing waits at a server of 2025-11-25 while its task works: it would be given the next question.

What waits is taken back before an answer leaves, with which the task goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import anyio
import pytest

from mcp_tasks_client.errors import SessionError
from mcp_tasks_client.sessions.base import TaskRef, ToolCall
from mcp_tasks_client.sessions.generations import AnyGenerationSession
from mcp_tasks_client.sessions.hearing import Hearing
from mcp_tasks_client.sessions.http_peer import HttpPeer
from mcp_tasks_client.sessions.shapes_2025_11_25 import Memo
from mcp_tasks_client.states import Question
from mcp_tasks_client.wire import JSONObject, RequestId

from ._requirements import requirement
from .test_core_tasks_faults import KEY, OLDER, QUESTION, TASK, Wire, asked_of_us, waiting
from .test_core_tasks_rooms import ScriptedPeer, hearing, question, settled, waited_for

__all__ = ["hearing", "wire"]  # the fixtures
pytestmark = pytest.mark.anyio

DECLINED: Final[JSONObject] = {"action": "decline"}
TAKEN_BACK: Final = "notifications/cancelled"
ROOM: Final = "mcp_tasks_client.sessions"


@pytest.fixture
def wire() -> Wire:
    wire = Wire()
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: waiting()
    return wire


async def asked(session: AnyGenerationSession, request_id: int = 7) -> TaskRef:
    """Begin a task, have it ask, and look at it as a driver does."""
    await session.call(ToolCall(name="slow"))
    look = anyio.Event()

    async def poll() -> None:
        await session.get(OLDER)
        look.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        await settled(lambda: session._older._hearing.retrievals.request_id(TASK))
        session._older._hearing.told(await session._older.connect(), asked_of_us(request_id))
        await look.wait()
    open_question = Question(key=KEY, digest=KEY, request=QUESTION, stage="sending")
    memo = session._older._hearing.hints.memo(await session._older.connect(), TASK)
    return replace(OLDER, request_state=str(memo), questions=(open_question,))


def since(wire: Wire, method: str) -> list[str]:
    """What has arrived after the first message of a method, and that."""
    arrived = [one for one, _ in wire.arrived]
    return arrived[arrived.index(method) :]


@requirement("law:1", "law:3", "law:8")
async def test_what_waits_is_taken_back_before_an_answer_leaves(wire: Wire) -> None:
    async with wire.session() as session:
        left = await asked(session)
        wire.heard.clear()
        await session.update(left, {KEY: DECLINED})
        assert since(wire, "tasks/result") == ["tasks/result", TAKEN_BACK, "POST"]
        (told,) = wire.heard
        assert Memo.read(told.request_state).retrieval is None, "it is journaled that nothing waits"
        assert list(told.input_requests or {}) == [KEY], "and before the answer leaves"


@requirement("law:3")
async def test_what_is_asked_next_is_waited_for_as_soon_as_a_look_tells_of_it(wire: Wire) -> None:
    async with wire.session() as session:
        left = await asked(session)
        await session.update(left, {KEY: DECLINED})
        left = replace(left, request_state=wire.heard[-1].request_state)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.get, left)
            await settled(lambda: len(wire.of("tasks/result")) == 2)
            session._older._hearing.told(await session._older.connect(), asked_of_us(8))
        assert wire.of(TAKEN_BACK) == ["s1"], "once"


@requirement("law:3", "law:8")
@pytest.mark.parametrize("comes", ["while it is taken back", "while the answer leaves", "afterwards"])
async def test_a_look_from_before_an_answer_left_has_nothing_wait(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """It shows the task waiting for what was answered since."""
    go, looked, look = anyio.Event(), anyio.Event(), anyio.Event()
    async with wire.session() as session:
        left = await asked(session)
        ask = session._older._peers.ask

        async def asked_late(method: str, ref: TaskRef) -> Any:
            said = await ask(method, ref)
            look.set()
            await go.wait()
            return said

        monkeypatch.setattr(session._older._peers, "ask", asked_late)

        async def poll() -> None:
            await session.get(left)
            looked.set()

        async def come() -> None:
            go.set()
            await looked.wait()

        held: Callable[[HttpPeer], Any] = (
            HttpPeer.take_back if comes == "while it is taken back" else HttpPeer.answer
        )

        async def holding(self: HttpPeer, *args: Any) -> None:
            await come()
            await held(self, *args)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poll)
            await look.wait()
            if comes != "afterwards":
                monkeypatch.setattr(HttpPeer, held.__name__, holding)
            await session.update(left, {KEY: DECLINED})
            await come()
        assert len(wire.of("tasks/result")) == 1


@requirement("law:3", "law:8")
@pytest.mark.parametrize("status", ["input_required", "completed", "working"])
@pytest.mark.parametrize("given_up", [False, True])
async def test_what_a_server_tells_while_an_answer_leaves_counts_once_that_has_left(
    hearing: Hearing, status: str, given_up: bool
) -> None:
    """It may ask the next question before it is heard to have the answer."""
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        async with hearing.at_rest(peer, TASK):
            assert len(peer.taken_back) == 1
            told = {"taskId": TASK, "status": status}
            hearing.told(peer, {"method": "notifications/tasks/status", "params": told})
            await anyio.wait_all_tasks_blocked()
            assert len(peer.requests) == 1
            if given_up:
                hearing.give_up(TASK)
        begins = status != "working" and not given_up
        await settled(lambda: len(peer.requests) == 1 + begins)
        await anyio.wait_all_tasks_blocked()
        assert len(peer.requests) == 1 + begins


@requirement("law:8")
async def test_an_answer_does_not_wait_for_what_cannot_be_taken_back(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But the journal knows of it until it is."""
    monkeypatch.setattr(f"{ROOM}.hearing._BACK_IN_S", 0.05)

    async def hangs(self: HttpPeer, request_id: RequestId, timeout_s: float) -> None:
        await anyio.sleep_forever()

    take_back = HttpPeer.take_back
    async with wire.session() as session:
        left = await asked(session)
        waits = Memo.read(left.request_state).retrieval
        monkeypatch.setattr(HttpPeer, "take_back", hangs)
        wire.heard.clear()
        await session.update(left, {KEY: DECLINED})
        assert wire.arrived[-1] == ("POST", "s1")
        assert [Memo.read(told.request_state).retrieval for told in wire.heard] == [waits]
        monkeypatch.setattr(HttpPeer, "take_back", take_back)
        wire.task["status"] = "working"
        task = await session.get(replace(left, request_state=wire.heard[-1].request_state))
        assert wire.of(TAKEN_BACK) == ["s1"]
        assert Memo.read(task.request_state).retrieval is None


@requirement("law:8")
async def test_what_could_not_be_taken_back_before_an_answer_left_is_afterwards(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ROOM}.hearing._BACK_IN_S", 3600.0)
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        (waits,) = [request_id for _, request_id in peer.requests]
        peer.refuses_to_take_back = True
        async with hearing.at_rest(peer, TASK):
            assert hearing.hints.memo(peer, TASK).retrieval == waits
        peer.refuses_to_take_back = False
        await hearing.retrievals.free(peer, TASK, waits)
        assert set(peer.taken_back) == {waits}, "it may have been tried again as it ended"
        assert hearing.hints.memo(peer, TASK).retrieval is None


@requirement("law:3")
async def test_a_question_that_is_withdrawn_as_its_answer_is_about_to_leave_is_not_answered(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_back = HttpPeer.take_back

    async def withdrawn(self: HttpPeer, request_id: RequestId, timeout_s: float) -> None:
        self._told(self, {"method": TAKEN_BACK, "params": {"requestId": 7}})
        await take_back(self, request_id, timeout_s)

    async with wire.session() as session:
        left = await asked(session)
        monkeypatch.setattr(HttpPeer, "take_back", withdrawn)
        with pytest.raises(SessionError, match="taken back") as caught:
            await session.update(left, {KEY: DECLINED})
        assert caught.value.retryable
        assert wire.of("POST") == []


@requirement("law:1", "law:8")
@pytest.mark.parametrize("brought", ["by it", "by the one before", "before it broke"])
async def test_what_has_brought_a_question_need_not_be_given_time_to_arrive(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, brought: str
) -> None:
    """Else it is: what is taken back before it has arrived, waits nevertheless."""
    for name in ("_ARRIVES_S", "_LATEST_ARRIVAL_S"):
        monkeypatch.setattr(f"{ROOM}.retrievals.{name}", 0.3)
    monkeypatch.setattr(f"{ROOM}.retrievals._HEARD_S", 60.0)
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        if brought == "before it broke":
            hearing.told(peer, question(1))
            broke, peer.go, peer.reply = peer.go, anyio.Event(), SessionError("cut", retryable=True)
            broke.set()
            await settled(lambda: len(peer.requests) == 2)
        if brought == "by the one before":  # which is heard out still
            hearing.told(peer, question(0))
            async with hearing.at_rest(peer, TASK):
                first = hearing.asked(TASK)
                (key,) = first.questions()
                first.answered(key, first.behind(key))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hearing.questions, peer, TASK, None)
                await settled(lambda: len(peer.requests) == 2)
        sent_at = hearing.retrievals._now[TASK].sent_at
        if brought != "before it broke":
            hearing.told(peer, question(1))
        async with hearing.at_rest(peer, TASK):
            assert (anyio.current_time() - sent_at < 0.3) is (brought == "by it")
        assert len(peer.taken_back) == len(peer.requests)


@requirement("law:3")
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_next_wait_goes_on_where_the_last_one_rested(hearing: Hearing, elsewhere: bool) -> None:
    """What is asked meanwhile waits at the server, so that nothing is lost; in another session it may be."""
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        stream = hearing.retrievals.stream(TASK)
        async with hearing.at_rest(peer, TASK):
            assert hearing.retrievals.stream(TASK) is stream
        other = ScriptedPeer("other") if elsewhere else peer
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.questions, other, TASK, None)
            await settled(lambda: hearing.retrievals._now)
        assert (hearing.retrievals.stream(TASK) is stream) is not elsewhere


@requirement("law:3", "law:8")
async def test_several_answers_may_leave_at_once(hearing: Hearing) -> None:
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        pauses = hearing.retrievals.pauses
        async with hearing.at_rest(peer, TASK):
            async with hearing.at_rest(peer, TASK):
                pass
            assert pauses.is_answering(TASK)
            assert not hearing.retrievals.may_begin(TASK)
        assert not pauses.is_answering(TASK)
        assert hearing.retrievals.may_begin(TASK)
        hearing.forget(TASK)
        with pauses.answering(TASK):
            meanwhile = anyio.current_time()
            assert pauses.is_outdated(TASK, meanwhile)
            await anyio.sleep(0.02)
        assert pauses.is_outdated(TASK, meanwhile)
        assert not pauses.is_outdated(TASK, anyio.current_time())
        with pauses.answering(TASK):
            pauses.forget(TASK)
        assert not any(vars(pauses).values()), "nothing is kept of a task that is over"


@requirement("law:8")
async def test_nothing_is_told_to_a_server_that_ends_it_by_itself(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ROOM}.hearing._BACK_IN_S", 3600.0)
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        hearing.retrievals.expect_end(TASK)
        async with hearing.at_rest(peer, TASK):
            assert peer.taken_back == []
        assert hearing.hints.memo(peer, TASK).retrieval is None


@requirement("law:3", "law:8")
@pytest.mark.parametrize("comes", ["before", "as the answer is about to leave", "never", "under the same ID"])
async def test_what_waits_for_a_task_that_asks_several_at_once_is_left_there(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """A server may say that it works when one has its answer, and hide that it asks the next one."""
    peer, others = ScriptedPeer(), comes in ("before", "as the answer is about to leave")
    if comes == "before":
        monkeypatch.setattr(f"{ROOM}.retrieval._OTHERS_S", 3600.0)  # nothing is waited for then
    async with waited_for(hearing, peer):
        hearing.told(peer, question(0))
        heard_at = anyio.current_time()
        if comes in ("before", "under the same ID"):
            hearing.told(peer, question(1 if others else 0))

        async def ask() -> None:
            await anyio.sleep(0.05)
            hearing.told(peer, question(1))

        async with anyio.create_task_group() as tasks:
            if comes == "as the answer is about to leave":
                tasks.start_soon(ask)
            async with hearing.at_rest(peer, TASK):
                assert others or anyio.current_time() - heard_at >= 0.1, (
                    "what is asked along with it may come"
                )
                assert len(peer.taken_back) == (not others)
        if others:
            asked = hearing.asked(TASK)
            asked.answered(next(iter(asked.questions())), asked.behind(next(iter(asked.questions()))))
            async with hearing.at_rest(peer, TASK):
                assert peer.taken_back == [], "nor later, as there may be more of them"


@requirement("law:3")
async def test_what_has_its_answer_under_way_is_not_one_of_several(hearing: Hearing) -> None:
    peer, asked = ScriptedPeer(), hearing.asked(TASK)
    hearing.told(peer, question(0))
    asked.leaves(next(iter(asked.questions())), None)
    hearing.told(peer, question(1, message="And then?"))
    assert not asked.several


@requirement("law:3")
@pytest.mark.parametrize("several", [True, False])
async def test_what_another_process_was_asked_counts_as_well(hearing: Hearing, several: bool) -> None:
    peer, asked = ScriptedPeer(), hearing.asked(TASK)
    asked.restore(peer, "k", [0, 1] if several else [0], QUESTION)
    assert asked.several is several


@requirement("law:8")
async def test_a_wait_that_ends_as_an_answer_is_about_to_leave_is_not_taken_back(hearing: Hearing) -> None:
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        hearing.told(peer, question(0))
        peer.reply = {}
        peer.go.set()
        async with hearing.at_rest(peer, TASK):
            assert peer.taken_back == []
        assert hearing.retrievals.reply(TASK) == {}
        hearing.forget(TASK)
        async with hearing.at_rest(peer, TASK):
            assert TASK not in hearing._asked, "nothing is kept of a task that is over"
