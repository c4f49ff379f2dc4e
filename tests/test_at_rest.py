"""That nothing waits at a server of 2025-11-25 while its task works: it would be given the next question.

What waits is taken back before an answer leaves, with which the task goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import anyio
import pytest

from mcp_tasks_client.old.errors import SessionError
from mcp_tasks_client.old.sessions import retrievals
from mcp_tasks_client.old.sessions.base import TaskRef, ToolCall
from mcp_tasks_client.old.sessions.failures import Failures
from mcp_tasks_client.old.sessions.generations import AnyGenerationSession
from mcp_tasks_client.old.sessions.hearing import Hearing
from mcp_tasks_client.old.sessions.http_peer import HttpPeer
from mcp_tasks_client.old.sessions.shapes_2025_11_25 import Memo
from mcp_tasks_client.old.states import Question
from mcp_tasks_client.old.wire import JSONObject, RequestId

from ._requirements import requirement
from .test_core_tasks_faults import KEY, OLDER, QUESTION, TASK, Wire, asked_of_us, waiting
from .test_core_tasks_rooms import ScriptedPeer, hearing, question, settled, waited_for

__all__ = ["hearing", "wire"]  # the fixtures
pytestmark = pytest.mark.anyio

DECLINED: Final[JSONObject] = {"action": "decline"}
TAKEN_BACK: Final = "notifications/cancelled"
ROOM: Final = "mcp_tasks_client.old.sessions"


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


@requirement("law:3", "law:8")
async def test_an_answer_does_not_wait_for_what_cannot_be_taken_back(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But the journal knows of it until it is; and if it brings no question, another one has to."""
    monkeypatch.setattr(f"{ROOM}.resting._BACK_IN_S", 0.05)
    monkeypatch.setattr(f"{ROOM}.hearing._QUESTION_S", 0.05)
    for name in ("_ARRIVES_S", "_LATEST_ARRIVAL_S"):
        monkeypatch.setattr(f"{ROOM}.retrieval.{name}", 0.0)
    hanging = anyio.Event()

    async def hangs(self: HttpPeer, request_id: RequestId, timeout_s: float) -> None:
        hanging.set()
        await anyio.sleep_forever()

    take_back = HttpPeer.take_back
    async with wire.session() as session:
        left = await asked(session)
        waits = Memo.read(left.request_state).retrieval
        monkeypatch.setattr(HttpPeer, "take_back", hangs)
        wire.heard.clear()
        await session.update(left, {KEY: DECLINED})
        assert hanging.is_set()
        assert wire.arrived[-1] == ("POST", "s1")
        assert [Memo.read(told.request_state).retrieval for told in wire.heard] == [waits]
        monkeypatch.setattr(HttpPeer, "take_back", take_back)
        left = replace(left, request_state=wire.heard[-1].request_state)
        await session.get(left)
        assert len(wire.of("tasks/result")) == 1, "it may be late"
        await session.get(left)
        await settled(lambda: len(wire.of("tasks/result")) == 2)
        assert set(wire.of(TAKEN_BACK)) == {"s1"}
        assert wire.arrived.index((TAKEN_BACK, "s1")) < len(wire.arrived) - 1, "before the other one goes"


@requirement("law:1", "law:3")
async def test_what_cannot_be_taken_back_before_an_answer_leaves_is_heard_on(hearing: Hearing) -> None:
    """The server hands the next question to it."""
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        (waits,) = [request_id for _, request_id in peer.requests]
        peer.refuses_to_take_back = True
        async with hearing.at_rest(peer, TASK):
            assert hearing.hints.memo(peer, TASK).retrieval == waits
        await anyio.sleep(0.4)  # more than what is taken back is heard out for
        assert peer.cancelled == 0
        assert hearing.hints.memo(peer, TASK).retrieval == waits, "and is known to whoever goes on"


@requirement("law:3")
@pytest.mark.parametrize("heeded", [False, True])
async def test_what_never_can_be_taken_back_does_not_keep_the_next_one_from_waiting(
    hearing: Hearing, heeded: bool
) -> None:
    """What that is handed is lost. If none waited, all that is asked would be."""
    peer = ScriptedPeer()
    async with waited_for(hearing, peer) as tasks:

        async def looks(most: int) -> int:
            """How many there are until one waits, at most."""
            peer.requests.clear()
            for number in range(1, most + 1):
                tasks.start_soon(hearing.questions, peer, TASK, "before")
                await settled(lambda: peer.requests or hearing.retrievals.failures.lately(TASK))
                hearing.retrievals.looked(TASK)
                if peer.requests:
                    return number
            return most

        hearing.retrievals.drop(TASK)
        peer.refuses_to_take_back = True
        if heeded:
            await looks(2)
            peer.refuses_to_take_back = False
            assert await looks(1) == 1
            hearing.retrievals.drop(TASK)
            peer.refuses_to_take_back = True
        assert await looks(10) == 3


@requirement("law:3", "law:8")
async def test_an_answer_that_is_said_again_has_nothing_taken_back_nor_put_off(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have arrived, so that the server asks the next question, or is about to."""
    answer, refuses = HttpPeer.answer, [True]

    async def unheard(self: HttpPeer, *args: Any) -> None:
        await answer(self, *args)
        if refuses:
            refuses.clear()
            raise SessionError("cut", retryable=True)

    monkeypatch.setattr(HttpPeer, "answer", unheard)
    async with wire.session() as session:
        left = await asked(session)
        with pytest.raises(SessionError, match="cut"):
            await session.update(left, {KEY: DECLINED})
        await settled(lambda: len(wire.of("tasks/result")) == 2)  # before any look: that may be far off
        pauses = session._older._hearing.retrievals.pauses

        async def said_again(self: HttpPeer, *args: Any) -> None:
            assert not pauses.is_outdated(TASK, anyio.current_time())
            await answer(self, *args)

        monkeypatch.setattr(HttpPeer, "answer", said_again)
        await session.update(left, {KEY: DECLINED})
        assert wire.of(TAKEN_BACK) == ["s1"]
        assert wire.of("POST") == ["s1", "s1"]


@requirement("law:3")
@pytest.mark.parametrize("over", [False, True])
async def test_what_is_told_while_an_answer_leaves_counts_though_that_fails(
    hearing: Hearing, over: bool
) -> None:
    peer = ScriptedPeer()
    told = {"taskId": TASK, "status": "input_required"}
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        with suppress(SessionError):
            async with hearing.at_rest(peer, TASK):
                hearing.told(peer, {"method": "notifications/tasks/status", "params": told})
                hearing.saw(peer, told)
                if over:
                    hearing.forget(TASK)
                raise SessionError("cut")
        assert hearing.retrievals.may_begin(TASK) is over
        assert not hearing._early


@requirement("law:1", "law:3")
@pytest.mark.parametrize("answered", ["here", "by the process before", "never"])
async def test_something_waits_again_when_a_task_works_for_long_after_an_answer(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, answered: str
) -> None:
    """A server may say that it works as soon as one of two questions has its answer, and hide the other."""
    monkeypatch.setattr(f"{ROOM}.pauses._REST_S", 0.3)
    async with wire.session() as session:
        if answered == "here":
            left = await asked(session)
            await session.update(left, {KEY: DECLINED})
        else:
            await session.call(ToolCall(name="slow"))
            stage = "acknowledged" if answered == "by the process before" else "sending"
            left = replace(OLDER, questions=(Question(key=KEY, digest=KEY, request=QUESTION, stage=stage),))
        waits = wire.of("tasks/result")
        wire.task["status"] = "working"
        await session.get(left)
        await anyio.wait_all_tasks_blocked()
        assert wire.of("tasks/result") == waits
        await anyio.sleep(0.3)
        await session.get(left)
        if answered != "never":
            await settled(lambda: len(wire.of("tasks/result")) == len(waits) + 1)
        await anyio.wait_all_tasks_blocked()
        assert len(wire.of("tasks/result")) == len(waits) + (answered != "never")


@requirement("law:10")
@pytest.mark.parametrize("ends", [True, False])
async def test_a_task_is_cancelled_once_nothing_of_it_is_being_taken_back(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """One official server loses the session when it ends what is taken back in the same moment."""
    monkeypatch.setattr(f"{ROOM}.retrievals._ALL_HEARD_S", 3600.0 if ends else 0.1)
    taking, go, take_back = anyio.Event(), anyio.Event(), HttpPeer.take_back
    wire.replies["tasks/cancel"] = lambda params, session: {**wire.task, "status": "cancelled"}

    async def slowly(self: HttpPeer, *args: Any) -> None:
        taking.set()
        await go.wait()
        await take_back(self, *args)

    async with wire.session() as session:
        left = await asked(session)
        monkeypatch.setattr(HttpPeer, "take_back", slowly)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.update, left, {KEY: DECLINED})
            await taking.wait()
            tasks.start_soon(session.cancel, left)
            await anyio.wait_all_tasks_blocked()
            assert wire.of("tasks/cancel") == []
            if ends:
                go.set()
            await settled(lambda: wire.of("tasks/cancel"))
            assert wire.of(TAKEN_BACK) == ["s1"] * ends
            go.set()


@requirement("law:10")
async def test_what_is_about_to_be_taken_back_of_a_task_that_is_cancelled_is_not(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_ARRIVES_S", "_LATEST_ARRIVAL_S"):
        monkeypatch.setattr(f"{ROOM}.retrieval.{name}", 0.2)
    peer = ScriptedPeer()
    async with waited_for(hearing, peer) as tasks:
        retrieval = hearing.retrievals.waiting(TASK)
        assert retrieval is not None
        tasks.start_soon(hearing.retrievals.retire)
        await anyio.wait_all_tasks_blocked()
        hearing.retrievals.expect_end(TASK)
        await retrieval.ended.wait()
        assert peer.taken_back == []


async def test_of_tasks_that_nobody_knows_the_latest_are_remembered(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ROOM}.hearing._MOST_STRANGERS", 2)
    for task_id in ("1", "2", "3"):
        params = {"taskId": task_id, "status": "completed"}
        hearing.told(ScriptedPeer(), {"method": "notifications/tasks/status", "params": params})
    assert [*hearing._early] == ["2", "3"]


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
        monkeypatch.setattr(f"{ROOM}.retrieval.{name}", 0.3)
    monkeypatch.setattr(f"{ROOM}.retrievals._HEARD_LATE_S", 60.0)
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
                tasks.cancel_scope.cancel()
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
    monkeypatch.setattr(f"{ROOM}.resting._BACK_IN_S", 3600.0)
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        hearing.retrievals.expect_end(TASK)
        async with hearing.at_rest(peer, TASK):
            assert peer.taken_back == []
        assert hearing.retrievals.waiting(TASK) is not None


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


def test_nothing_is_kept_of_the_failures_of_a_task_that_is_over() -> None:
    failures = Failures()
    failures.note(TASK, SessionError("cut"))
    failures.refused_too_often(TASK, 2)
    failures.unheeded_too_often(TASK)
    failures.forget(TASK)
    assert not any(vars(failures).values())


@requirement("law:8")
async def test_nobody_waits_for_long_for_what_cannot_be_taken_back_as_all_ends(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server wants to know by then is yet to be answered."""
    monkeypatch.setattr(f"{ROOM}.retrievals._ALL_HEARD_S", 0.2)
    peer = ScriptedPeer()

    async def hangs(request_id: RequestId, timeout_s: float) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(peer, "take_back", hangs)
    async with waited_for(hearing, peer):
        with anyio.fail_after(2.0):
            await hearing.retrievals.retire()


@requirement("law:1", "law:3")
async def test_what_was_said_to_what_is_taken_back_may_be_long_on_its_way(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over another connection than that over which it is taken back. The server does not say it again."""
    monkeypatch.setattr(f"{ROOM}.retrievals._HEARD_S", 0.01)
    late_s = retrievals._HEARD_LATE_S
    assert 1.0 < late_s < 10.0
    monkeypatch.setattr(f"{ROOM}.retrievals._HEARD_LATE_S", 100 * late_s)
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        async with hearing.at_rest(peer, TASK):
            pass
        await anyio.sleep(0.5)
        assert peer.cancelled == 0
        hearing.forget(TASK)
        await settled(lambda: peer.cancelled == 1)


@requirement("law:1", "law:3")
@pytest.mark.parametrize("refused", [None, 502, 503, 400])
async def test_what_may_wait_no_more_does_not_keep_another_one_from_waiting_as_a_task_works(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    monkeypatch.setattr(f"{ROOM}.pauses._REST_S", 0.0)
    peer, maybe_heard = ScriptedPeer(), refused in (None, 502)

    async def unheard(request_id: RequestId, timeout_s: float) -> None:
        await anyio.lowlevel.checkpoint()
        raise SessionError("cut", http_status=refused)

    take_back = peer.take_back
    monkeypatch.setattr(peer, "take_back", unheard)
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        async with hearing.at_rest(peer, TASK):
            pass
        monkeypatch.setattr(peer, "take_back", take_back)
        hearing.works_on(peer, TASK)
        await settled(lambda: len(peer.requests) == 1 + maybe_heard)
        await anyio.wait_all_tasks_blocked()
        assert len(peer.requests) == 1 + maybe_heard
        assert peer.cancelled == maybe_heard, "what waits for sure is heard on"


@requirement("law:4")
async def test_what_is_to_wait_while_a_task_works_is_not_begun_at_each_look(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server, or a gateway, may refuse it."""
    monkeypatch.setattr(f"{ROOM}.pauses._REST_S", 0.3)
    peer = ScriptedPeer()
    peer.reply = SessionError("not yet", code=-32000)
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        async with hearing.at_rest(peer, TASK):
            pass
        peer.go.set()
        await anyio.sleep(0.35)
        hearing.works_on(peer, TASK)
        await settled(lambda: hearing.retrievals.failures.lately(TASK))
        for _ in range(2):
            hearing.retrievals.looked(TASK)
            hearing.works_on(peer, TASK)
            await anyio.wait_all_tasks_blocked()
        assert len(peer.requests) == 2
        await anyio.sleep(0.35)
        hearing.give_up(TASK)
        hearing.works_on(peer, TASK)
        await anyio.wait_all_tasks_blocked()
        assert len(peer.requests) == 2, "nor for a task that was cancelled"


@requirement("law:3")
async def test_what_a_process_before_has_answered_does_not_outdate_the_first_look(wire: Wire) -> None:
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        answered = Question(key=KEY, digest=KEY, request=QUESTION, stage="acknowledged")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.get, replace(OLDER, questions=(answered,)))
            await settled(lambda: wire.of("tasks/result"))
            tasks.cancel_scope.cancel()
        assert len(wire.of("tasks/get")) == 1


@requirement("law:4")
async def test_nothing_is_begun_when_the_server_wants_to_be_left_alone_as_it_is_given_an_answer(
    hearing: Hearing,
) -> None:
    peer = ScriptedPeer()
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        with suppress(SessionError):
            async with hearing.at_rest(peer, TASK):
                raise SessionError("busy", retry_after_s=4.0)
        await anyio.wait_all_tasks_blocked()
        assert len(peer.requests) == 1


@requirement("law:4", "law:3")
async def test_an_answer_is_put_off_once_when_the_server_wants_to_be_left_alone(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may say so each time that it is told that nothing waits any more. The answer has to leave."""
    peer = ScriptedPeer()

    async def busy(request_id: RequestId, timeout_s: float) -> None:
        await anyio.lowlevel.checkpoint()
        raise SessionError("busy", http_status=429, retry_after_s=0.2)

    monkeypatch.setattr(peer, "take_back", busy)
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        with pytest.raises(SessionError, match="busy") as caught:
            await hearing.at_rest(peer, TASK).__aenter__()
        assert caught.value.retry_after_s == 0.2, "by which whoever answers has nothing begin either"
        async with hearing.at_rest(peer, TASK):
            pass


@requirement("law:3", "law:8")
async def test_the_last_one_is_known_still_if_neither_it_nor_the_next_can_be_taken_back(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, tries = ScriptedPeer(), list[RequestId]()

    async def unheard(request_id: RequestId, timeout_s: float) -> None:
        tries.append(request_id)
        if len(tries) == 1:
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        raise SessionError("cut")

    monkeypatch.setattr(peer, "take_back", unheard)
    with anyio.fail_after(10.0):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hearing.run)
            await anyio.wait_all_tasks_blocked()
            hearing.saw(peer, {"taskId": TASK, "status": "input_required"})
            tasks.start_soon(hearing.questions, peer, TASK, "before")
            await settled(lambda: tries)
            hearing.told(peer, question())
            async with hearing.at_rest(peer, TASK):
                await settled(lambda: not hearing.retrievals._now)
                assert hearing.hints.memo(peer, TASK).retrieval == "before"
            assert not hearing.retrievals.failures.lately(TASK), "what is told has another one begin"
            tasks.cancel_scope.cancel()
    assert peer.requests == []


@requirement("law:3", "law:8")
async def test_nothing_begins_to_wait_for_a_task_that_is_only_heard_out(hearing: Hearing) -> None:
    """Nobody observes it. What it asks waits at the server for who goes on with it."""
    peer = ScriptedPeer()
    told = {"taskId": TASK, "status": "input_required"}
    async with waited_for(hearing, peer):
        hearing.told(peer, question())
        async with hearing.at_rest(peer, TASK):
            pass
        assert hearing.leave(TASK) is not None
        hearing.told(peer, {"method": "notifications/tasks/status", "params": told})
        await anyio.sleep(0.05)
        assert len(peer.requests) == 1
        hearing.retrievals.looked(TASK)
        hearing.told(peer, {"method": "notifications/tasks/status", "params": told})
        await settled(lambda: len(peer.requests) == 2)


@requirement("law:8")
async def test_so_many_are_heard_at_once_that_were_taken_back(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One official server ends none of them, and a host may have given a client with so many connections."""
    monkeypatch.setattr(f"{ROOM}.retrievals._MOST_LATE", 2)
    monkeypatch.setattr(f"{ROOM}.retrievals._HEARD_LATE_S", 3600.0)
    peer = ScriptedPeer()
    async with waited_for(hearing, peer) as tasks:
        for number in range(4):
            hearing.told(peer, question(number))
            async with hearing.at_rest(peer, TASK):
                asked = hearing.asked(TASK)
                (key,) = asked.questions()
                asked.answered(key, asked.behind(key))
            tasks.start_soon(hearing.questions, peer, TASK, None)
            await settled(lambda n=number: len(peer.requests) == n + 2)
        await settled(lambda: peer.cancelled == 2)
        await anyio.sleep(0.05)
        assert peer.cancelled == 2


@requirement("law:3", "law:8")
async def test_what_could_not_be_taken_back_is_before_the_next_answer_leaves(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after an answer one official server loses the next question by it."""
    monkeypatch.setattr(f"{ROOM}.resting._BACK_IN_S", 3600.0)
    peer, take_back = ScriptedPeer(), ScriptedPeer.take_back

    async def slowly(request_id: RequestId, timeout_s: float) -> None:
        await anyio.sleep(0.1)
        await take_back(peer, request_id, timeout_s)

    monkeypatch.setattr(peer, "take_back", slowly)
    peer.refuses_to_take_back = True
    async with waited_for(hearing, peer):
        for number in (0, 1):
            hearing.told(peer, question(number))
            async with hearing.at_rest(peer, TASK):
                assert len(peer.taken_back) == number
                asked = hearing.asked(TASK)
                (key,) = asked.questions()
                asked.answered(key, asked.behind(key))
            peer.refuses_to_take_back = False
