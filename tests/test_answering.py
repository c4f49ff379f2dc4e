"""An answer over a connection that does not tell what becomes of it: it has arrived when the task goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks_client.old.errors import ConnectionLostError
from mcp_tasks_client.old.inputs import Callbacks
from mcp_tasks_client.old.sessions.answering import Answering
from mcp_tasks_client.old.sessions.asked import Asked
from mcp_tasks_client.old.sessions.base import TaskRef
from mcp_tasks_client.old.sessions.hearing import Hearing
from mcp_tasks_client.old.sessions.peer import Peer
from mcp_tasks_client.old.sessions.peers import Peers
from mcp_tasks_client.old.sessions.retrievals import Retrievals
from mcp_tasks_client.old.sessions.said import Said
from mcp_tasks_client.old.wire import JSONObject, RequestId, RpcError

from ._requirements import requirement

NAME: Final[JSONObject] = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object"}}
METHOD: Final = "elicitation/create"
LIMIT_S: Final = 10.0


def said_to(*requests: tuple[str, int]) -> tuple[Asked[str], str, Said[str]]:
    """What was asked so, with its key and an answer that was said to it."""
    asked = Asked[str]()
    for peer, request_id in requests:
        asked.add(peer, request_id, METHOD, NAME)
    ((key, _),) = asked.questions().items()
    return asked, key, asked.says(key, asked.waiting(key))


@requirement("law:3")
def test_what_was_said_is_kept_under_its_key_until_it_has_arrived() -> None:
    asked, key, said = said_to(("here", 0))
    assert (asked.open, asked.was_answered(key), asked.said(key)) == (False, True, said)
    assert asked.request_ids() == {key: [0]}, "for another process, which may have to say it"
    asked.looked(asked.all_said(), waits=False)
    assert (said.arrived, asked.said(key), asked.request_ids()) == (True, None, {})
    assert asked.was_answered(key)


@requirement("law:3")
def test_what_is_asked_after_an_answer_was_said_is_another_question() -> None:
    asked, key, _ = said_to(("here", 0))
    asked.add("here", 1, METHOD, NAME)
    (other,) = set(asked.questions()) - {key}
    assert asked.waiting(other) == [("here", 1)]
    assert asked.waiting(key) == [], "nobody else gets this answer"


@requirement("law:3")
@pytest.mark.parametrize("comes_again", [False, True])
def test_an_answer_that_leaves_twice_is_for_the_same_request_unless_that_comes_again(
    comes_again: bool,
) -> None:
    asked = Asked[str]()
    asked.add("here", 0, METHOD, NAME)
    (key,) = asked.questions()
    behind = asked.leaves(key, "stream")
    asked.leaves(key, "another stream")
    if comes_again:
        asked.add("here", 0, METHOD, NAME)
    asked.answered(key, behind)
    assert list(asked.questions()) == ([f"{key}#1"] if comes_again else [])


@requirement("law:3")
@pytest.mark.parametrize("left", [False, True])
def test_of_what_has_an_answer_by_now_only_what_no_answer_had_left_for_is_another_question(
    left: bool,
) -> None:
    asked = Asked[str]()
    asked.add("here", 0, METHOD, NAME)
    ((key, question),) = asked.questions().items()
    if left:
        asked = Asked[str]()
        asked.restore("here", key, [0], question, answered=True)
    asked.learn([key])
    assert list(asked.questions()) == ([] if left else [f"{key}#1"])


@requirement("law:3")
def test_what_somebody_else_may_have_answered_is_not_asked_anew() -> None:
    asked = Asked[str]()
    asked.add("here", 0, METHOD, NAME)
    ((key, _),) = asked.questions().items()
    assert asked.leave(), "nobody observes the task here any more, and another client does"
    asked.learn([key])
    assert asked.questions() == {}


@requirement("law:3")
def test_who_asks_again_under_an_id_has_the_answer_to_what_had_it_before() -> None:
    asked, key, said = said_to(("here", 0))
    asked.add("there", 0, METHOD, NAME)
    assert said.arrived is None, "somebody else's ID"
    asked.add("here", 0, METHOD, NAME)
    assert said.arrived
    assert key not in asked.questions()
    assert len(asked.questions()) == 1


def test_a_snapshot_says_something_only_of_what_was_said_before_it_was_asked_for() -> None:
    asked, _, said = said_to(("here", 0))
    asked.looked((), waits=False)
    assert said.arrived is None
    asked.looked([said], waits=True)
    assert (said.arrived, said.looks) == (None, 1)
    asked.add("here", 1, "roots/list", {})
    asked.looked([said], waits=True)
    assert said.looks == 2, "it may wait for the other one, but not both are to be waited for"
    asked.withdraw("here", 1)
    for waits in (False, False, True):
        asked.looked([said], waits=waits)
        assert (said.arrived, said.looks) == (True, 2), "what comes late changes nothing"


@requirement("law:3")
@pytest.mark.parametrize("how", ["withdrawn", "lost", "not said after all"])
def test_a_question_whose_answer_was_of_no_use_keeps_its_key(how: str) -> None:
    asked, key, said = said_to(("here", 0), ("there", 0))
    match how:
        case "withdrawn":
            asked.withdraw("here", 0)
        case "lost":
            asked.lose("here")
        case _:
            asked.unsaid(said)
    assert said.arrived is False
    assert not asked.was_answered(key)
    left = [("there", 0)] if how != "not said after all" else [("here", 0), ("there", 0)]
    assert asked.waiting(key) == left
    asked.unsaid(said)  # that it could not be said comes too late
    asked.add("here", 7, METHOD, NAME)
    is_same = how != "not said after all"  # there the first one is open
    assert asked.waiting(key) == left + [("here", 7)] * is_same


def test_nobody_waits_for_what_becomes_of_an_answer_once_the_task_is_over() -> None:
    asked, _, said = said_to(("here", 0))
    asked.close()
    assert said.arrived is True
    asked.add("here", 1, METHOD, NAME)
    late = asked.says("late", [("here", 1)])
    assert late.arrived is True
    assert late.news.is_set()


@requirement("law:3")
def test_what_has_no_answer_is_kept_while_nobody_observes_the_task() -> None:
    asked, key, said = said_to(("here", 0))
    assert asked.leave()
    assert said.arrived is False
    assert asked.waiting(key) == [("here", 0)]
    assert not asked.over
    asked.answered(key, asked.behind(key))
    assert not asked.leave()
    asked.add("here", 1, METHOD, NAME)
    asked.lose("here")
    assert asked.leave(), "the session may be found again"


@requirement("law:1", "law:3")
def test_what_was_asked_over_a_connection_that_is_gone_may_be_answered_by_the_next_process() -> None:
    """It goes back to the session, where the server waits for just that."""
    asked, first, _ = said_to(("here", 0))
    asked.add("here", 1, METHOD, NAME)
    (second,) = set(asked.questions()) - {first}
    asked.lose("here")
    asked.add("here", 2, METHOD, {**NAME, "message": "Age?"})
    asked.lose("here")
    assert (asked.request_ids(), asked.open) == ({}, False)
    assert asked.request_ids("elsewhere") == {}
    assert asked.request_ids("here") == {first: [0], second: [1]}, "what nobody was told of has no name"
    asked.find("here")
    assert sorted(asked.request_ids("here").values()) == [[0], [1], [2]]


@requirement("law:3")
def test_two_questions_of_one_text_are_still_two_in_the_next_process() -> None:
    asked, first, _ = said_to(("here", 0))
    asked.add("here", 1, METHOD, NAME)
    questions, request_ids = asked.questions(), asked.request_ids()
    (second,) = set(questions) - {first}
    after: Asked[str] = Asked()
    for key, ids in request_ids.items():
        after.restore("there", key, ids, questions[key])
    assert after.waiting(first) == [("there", 0)]
    assert after.waiting(second) == [("there", 1)]
    after.add("there", 2, METHOD, NAME)
    assert after.waiting(f"{first}#2") == [("there", 2)]
    after.add("elsewhere", 0, METHOD, NAME)
    assert after.waiting(first) == [("there", 0), ("elsewhere", 0)], "it may be the first one, asked again"


@requirement("law:3", "law:10")
def test_the_same_words_under_two_ids_are_two_questions_each_with_its_own_answer() -> None:
    """Such as two steps that are to be approved, or two samples of one prompt."""
    asked: Asked[str] = Asked()
    for request_id in (0, 1, 0):
        asked.add("here", request_id, METHOD, NAME)
    first, second = asked.questions()
    assert [asked.waiting(one) for one in (first, second)] == [[("here", 0)], [("here", 1)]]
    asked.answered(second, asked.leaves(second, None))
    asked.add("here", 2, METHOD, NAME)
    assert [*asked.questions()] == [first, f"{first}#2"]
    asked.withdraw("here", 0)
    assert [*asked.questions()] == [f"{first}#2"], "whatever becomes of the others"


STREAM: Final = object()


def left_for(*requests: tuple[str, int]) -> tuple[Asked[str], str]:
    """What was asked so, and a key under which an answer has left that may have arrived."""
    asked = Asked[str]()
    for peer, request_id in requests:
        asked.add(peer, request_id, METHOD, NAME, STREAM)
    ((key, _),) = asked.questions().items()
    assert len(asked.leaves(key, STREAM)) == len(requests)
    return asked, key


@requirement("law:3")
@pytest.mark.parametrize(
    ("peer", "request_id", "stream", "same"),
    [
        ("here", 1, STREAM, False),
        ("here", 1, None, False),
        ("here", 0, STREAM, False),
        ("here", 0, object(), True),
        ("here", 0, None, True),
        ("there", 0, STREAM, True),
    ],
)
def test_once_an_answer_leaves_the_same_words_are_another_question_in_the_same_session(
    peer: str, request_id: int, stream: object | None, same: bool
) -> None:
    asked, key = left_for(("here", 0))
    asked.add(peer, request_id, METHOD, NAME, stream)
    assert (set(asked.questions()) == {key}) == same
    assert ((peer, request_id) in asked.waiting(key)) == same
    arrived = not same and request_id == 0
    assert asked.was_answered(key) == arrived, "no stream brings a request twice"
    assert (("here", 0) in asked.waiting(key)) != arrived


@requirement("law:3")
@pytest.mark.parametrize("by", ["us", "another process", "nobody"])
def test_an_answer_has_arrived_if_other_words_come_under_its_id(by: str) -> None:
    asked, key = left_for(("here", 0))
    if by != "us":
        asked = Asked()
        asked.restore("here", key, [0], {"method": METHOD, "params": NAME}, answered=by != "nobody")
    asked.add("here", 0, "roots/list", {}, STREAM)
    assert key not in asked.questions()
    assert asked.was_answered(key) == (by != "nobody")
    asked.add("here", 5, METHOD, NAME, STREAM)
    assert (key in asked.questions()) == (by == "nobody"), "what comes in the same words is another question"


@requirement("law:3")
def test_the_next_process_knows_which_answers_have_arrived_though_nobody_said_so() -> None:
    before, key = left_for(("here", 0))
    assert before.concluded == ()
    before.add("here", 0, METHOD, NAME, STREAM)
    assert before.concluded == (key,)
    asked: Asked[str] = Asked()
    asked.add("here", 9, METHOD, NAME)
    assert [*asked.questions()] == [key]
    asked.learn([], before.concluded)
    asked.restore("here", key, [0], {"method": METHOD, "params": NAME}, answered=True)
    assert [*asked.questions()] == [f"{key}#1"]
    assert (asked.was_answered(key), asked.concluded) == (True, (key,)), "and so does the one after it"


@requirement("law:3")
def test_what_comes_under_the_id_of_an_answer_that_arrives_is_another_question() -> None:
    asked, key = left_for(("here", 0))
    behind = asked.behind(key)
    asked.add("here", 0, METHOD, NAME, object())
    asked.answered(key, behind)
    assert list(asked.questions()) == [f"{key}#1"]
    assert asked.waiting(f"{key}#1") == [("here", 0)]


@requirement("law:3")
def test_an_answer_that_arrives_once_its_session_is_found_again_has_arrived() -> None:
    asked, key = left_for(("here", 0))
    behind = asked.behind(key)
    asked.lose("here")
    asked.find("here")
    asked.answered(key, behind)
    assert asked.questions() == {}


@requirement("law:3")
def test_an_answer_that_was_of_no_use_is_kept_for_when_the_same_is_asked_again() -> None:
    asked, key = left_for(("here", 0))
    asked.withdraw("here", 0)
    asked.add("here", 1, METHOD, NAME, STREAM)
    assert asked.waiting(key) == [("here", 1)]


@requirement("law:3")
@pytest.mark.parametrize("stream", [None, STREAM])
def test_an_answer_whose_id_is_anothers_by_then_has_arrived_if_it_had_left(stream: object | None) -> None:
    asked = Asked[str]()
    asked.restore("here", "k", [0], NAME)
    asked.leaves("k", stream)
    asked.add("here", 1, METHOD, NAME)
    (_, other) = asked.questions()
    for request_id in (0, 1):
        asked.given_away("here", request_id)
    assert (asked.was_answered("k"), asked.was_answered(other), asked.questions()) == (True, False, {})


@requirement("law:3")
@pytest.mark.parametrize("how", ["over the same stream", "when the answer arrives"])
def test_a_new_question_has_had_no_answer_though_it_has_the_id_of_one_that_has(how: str) -> None:
    asked, key = left_for(("here", 0))
    behind = asked.behind(key)
    asked.add("here", 0, METHOD, NAME, STREAM if how == "over the same stream" else object())
    asked.answered(key, behind)
    (new,) = asked.questions()
    asked.given_away("here", 0)
    assert (asked.was_answered(key), asked.was_answered(new)) == (True, False)


@requirement("law:3")
def test_what_a_process_was_asked_is_another_question_under_another_id() -> None:
    asked, key = Asked[str](), left_for(("here", 0))[1]
    asked.restore("here", key, [0], {"method": METHOD, "params": NAME})
    asked.add("here", 1, METHOD, NAME, STREAM)
    assert asked.waiting(key) == [("here", 0)]
    asked.add("here", 0, METHOD, NAME, STREAM)
    assert asked.waiting(key) == [("here", 0)], "it may have been told again"
    asked.withdraw("here", 0)
    asked.add("here", 2, METHOD, NAME, STREAM)
    assert asked.waiting(key) == [("here", 2)], "it was of no use"


def test_a_connection_that_is_found_again_was_not_looked_for_in_vain() -> None:
    asked: Asked[str] = Asked()
    assert [asked.looks_in_vain(one) for one in ("here", "here", "there", "there")] == [1, 2, 1, 2]
    asked.find("there")
    assert asked.looks_in_vain("there") == 1


def test_what_is_found_again_is_put_aside_no_more() -> None:
    asked: Asked[str] = Asked()
    asked.add("here", 0, METHOD, NAME)
    asked.lose("here")
    assert (asked.open, asked.was_asked_in("here"), asked.was_asked_in("there")) == (False, True, False)
    assert asked.put_aside() == "here"
    asked.find("here")
    assert (asked.open, asked.was_asked_in("here"), asked.put_aside()) == (True, False, None)


def test_what_another_process_was_asked_is_not_put_in_the_place_of_what_is_asked_now() -> None:
    asked: Asked[str] = Asked()
    asked.add("here", 0, "roots/list", {})
    before: Any = asked.questions()
    asked.restore("here", "of-before", [0], NAME)
    assert asked.questions() == before


# ── saying it ─────────────────────────────────────────────────────────────────────────────────


class SayingPeer(Peer):
    """Takes answers as it is told to; nothing is asked of it."""

    def __init__(self, *, acknowledges: bool) -> None:
        super().__init__("s")
        self.acknowledges = acknowledges
        self.answers: list[RequestId] = []
        self.before_it_returns: Callable[[], None] = lambda: None

    async def initialize(self, params: JSONObject, timeout_s: float) -> JSONObject:
        raise AssertionError("not here")

    async def request(self, method: str, params: JSONObject, silence_s: float, **about: Any) -> JSONObject:
        raise AssertionError("not here")

    async def answer(
        self,
        request_id: RequestId,
        answer: JSONObject | RpcError,
        timeout_s: float,
        task_id: str | None = None,
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.answers.append(request_id)
        self.before_it_returns()

    async def take_back(self, request_id: RequestId, timeout_s: float) -> None:
        raise AssertionError("not here")


class World:
    """A task that asks the same over two connections, and who answers."""

    def __init__(self, *, acknowledges: bool, request_ids: Sequence[RequestId] = (0, 1)) -> None:
        self.peer, other = SayingPeer(acknowledges=acknowledges), SayingPeer(acknowledges=acknowledges)
        other.answers, other.before_it_returns = self.peer.answers, lambda: self.peer.before_it_returns()
        self.hearing = Hearing(Callbacks(), LIMIT_S, lambda: None)
        peers = Peers(lambda *_: self.peer, {}, self.hearing, lambda peer: anyio.sleep(0), LIMIT_S)
        self.answering = Answering(self.hearing, peers, LIMIT_S)
        self.asked = self.hearing.asked("t")
        for peer, request_id in zip((self.peer, other), request_ids, strict=False):
            self.asked.add(peer, request_id, METHOD, NAME)
        ((self.key, _),) = self.asked.questions().items()

    async def update(self) -> None:
        with anyio.fail_after(LIMIT_S):
            await self.answering.update(TaskRef("t"), {self.key: {"action": "decline"}})

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(LIMIT_S):
            while not condition():
                await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
@pytest.mark.parametrize("acknowledges", [True, False])
async def test_what_is_taken_back_while_it_is_answered_stays_a_question(acknowledges: bool) -> None:
    world = World(acknowledges=acknowledges)
    world.peer.before_it_returns = lambda: world.asked.withdraw(world.peer, 0)
    with pytest.raises(ConnectionLostError, match="taken back") as caught:
        await world.update()
    assert caught.value.retryable
    assert world.peer.answers == [0]
    assert not world.asked.was_answered(world.key)


@pytest.mark.anyio
@requirement("law:3")
async def test_an_answer_that_is_taken_back_while_another_is_said_does_not_count_as_arrived() -> None:
    world = World(acknowledges=False)
    world.asked.add(world.peer, 2, "roots/list", {})
    (other,) = set(world.asked.questions()) - {world.key}
    answered = iter((lambda: None, lambda: None, lambda: world.asked.withdraw(world.peer, 0)))
    world.peer.before_it_returns = lambda: next(answered)()
    with anyio.fail_after(LIMIT_S), pytest.raises(ConnectionLostError, match="taken back"):
        await world.answering.update(TaskRef("t"), {world.key: {"action": "decline"}, other: {}})
    assert not world.asked.was_answered(world.key)


@pytest.mark.anyio
@pytest.mark.parametrize("acknowledges", [True, False])
async def test_nothing_more_is_said_of_a_task_that_is_cancelled_meanwhile(acknowledges: bool) -> None:
    world = World(acknowledges=acknowledges)
    world.peer.before_it_returns = lambda: world.hearing.give_up("t")
    await world.update()
    assert world.peer.answers == [0]


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["cancelled", "over", "of no interest any more"])
async def test_nobody_waits_for_the_effect_of_an_answer_to_a_task_that_is(how: str) -> None:
    world = World(acknowledges=False)
    async with anyio.create_task_group() as tasks:
        if how == "of no interest any more":
            tasks.start_soon(partial(raises_lost, world.update))
        else:
            tasks.start_soon(world.update)
        await world.until(lambda: len(world.peer.answers) == 2)
        await anyio.wait_all_tasks_blocked()
        if how == "cancelled":
            world.hearing.give_up("t")
        else:
            (world.hearing.forget if how == "over" else world.hearing.leave)("t")


async def raises_lost(update: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(ConnectionLostError):
        await update()


@pytest.mark.anyio
async def test_what_could_not_be_said_is_open_again() -> None:
    world = World(acknowledges=False)

    def fail() -> None:
        raise ConnectionLostError("no", retryable=True)

    world.peer.before_it_returns = fail
    with pytest.raises(ConnectionLostError):
        await world.update()
    assert world.asked.open
    assert not world.asked.was_answered(world.key)


@pytest.mark.anyio
async def test_each_time_that_an_answer_is_said_two_snapshots_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.answering._AGAIN_S", 0.0)
    monkeypatch.setattr(Retrievals, "stream", lambda self, task_id: "the same")
    world = World(acknowledges=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.update)
        await world.until(lambda: world.asked.said(world.key))
        for looks in range(1, 6):
            await anyio.wait_all_tasks_blocked()
            assert len(world.peer.answers) == 2 * (1 + (looks - 1) // 2), "to both requests"
            world.asked.looked(world.asked.all_said(), waits=True)
        # Who comes later waits for the same.
        tasks.start_soon(world.update)
        await anyio.wait_all_tasks_blocked()
        world.asked.looked(world.asked.all_said(), waits=False)
    assert len(world.peer.answers) == 6


@pytest.mark.anyio
@requirement("law:3")
@pytest.mark.parametrize(("under", "again"), [("another ID", True), ("its ID", False)])
async def test_an_answer_without_effect_is_said_again_unless_another_question_has_its_id(
    monkeypatch: pytest.MonkeyPatch, under: str, again: bool
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.answering._AGAIN_S", 0.0)
    stream = object()
    monkeypatch.setattr(Retrievals, "stream", lambda self, task_id: stream)
    world = World(acknowledges=False, request_ids=("id",))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.update)
        await world.until(lambda: world.asked.said(world.key))
        world.asked.add(world.peer, "id" if under == "its ID" else "other", "roots/list", {})
        for _ in range(2):
            await anyio.wait_all_tasks_blocked()
            world.asked.looked(world.asked.all_said(), waits=True)
        await anyio.wait_all_tasks_blocked()
        assert len(world.peer.answers) == (2 if again else 1)
        world.asked.looked(world.asked.all_said(), waits=False)


@pytest.mark.anyio
@requirement("law:3")
@pytest.mark.parametrize(("request_ids", "again"), [((0, 1), True), (("0", "1"), False), ((0, "1"), False)])
async def test_an_answer_is_said_again_after_a_stream_has_ended_if_no_other_question_can_have_its_id(
    monkeypatch: pytest.MonkeyPatch, request_ids: Sequence[RequestId], again: bool
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.answering._AGAIN_S", 0.0)
    monkeypatch.setattr(Retrievals, "stream", lambda self, task_id: object())  # another one each time
    world = World(acknowledges=False, request_ids=request_ids)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.update)
        await world.until(lambda: world.asked.said(world.key))
        for _ in range(2):
            await anyio.wait_all_tasks_blocked()
            world.asked.looked(world.asked.all_said(), waits=True)
        await anyio.wait_all_tasks_blocked()
        assert len(world.peer.answers) == (4 if again else 2), "to both requests"
        world.asked.looked(world.asked.all_said(), waits=False)
