"""A reply is said until the server has it, or waits for it no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client.old.errors import ConnectionLostError, CredentialRefusedError, SessionError
from mcp_tasks_client.old.inputs import Callbacks
from mcp_tasks_client.old.sessions.peer import Peer
from mcp_tasks_client.old.sessions.plain import PlainQuestions
from mcp_tasks_client.old.sessions.saying import say
from mcp_tasks_client.old.wire import JSONObject, RequestId, RpcError

from ._requirements import requirement
from .test_answering import SayingPeer

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 10.0
DOWN: Final = SessionError("HTTP 503", retryable=True)


class RefusingPeer(SayingPeer):
    """Refuses answers, and then takes them."""

    def __init__(self, *refusals: SessionError) -> None:
        super().__init__(acknowledges=True)
        self.refusals = [*refusals]
        self.said: list[JSONObject | RpcError] = []
        self.tried = anyio.Event()

    async def answer(self, request_id: RequestId, answer: JSONObject | RpcError, *limits: Any) -> None:
        await super().answer(request_id, answer, *limits)
        self.tried.set()
        if self.refusals:
            raise self.refusals.pop(0)
        self.said.append(answer)


async def said(peer: Peer, *, wanted: Sequence[bool] = ()) -> tuple[bool, list[float]]:
    """Whether a reply was said, and the seconds between the tries."""
    rests: list[float] = []
    still = iter(wanted)

    async def rest(seconds: float) -> None:
        await anyio.lowlevel.checkpoint()
        rests.append(seconds)

    done = await say(peer, 0, {}, LIMIT_S, rest=rest, wanted=lambda: next(still, True))
    return done, rests


@requirement("law:3")
async def test_it_is_said_ever_more_rarely_until_the_server_has_it() -> None:
    peer = RefusingPeer(*[DOWN] * 7)
    done, rests = await said(peer)
    assert done
    assert len(peer.said) == 1
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@requirement("law:4")
async def test_a_server_that_wants_to_be_left_alone_is() -> None:
    wait = SessionError("HTTP 429", retryable=True, retry_after_s=300.0)
    assert await said(RefusingPeer(wait, DOWN, wait)) == (True, [300.0, 2.0, 300.0])


async def test_a_credential_may_be_renewed_meanwhile() -> None:
    assert await said(RefusingPeer(CredentialRefusedError("HTTP 401"))) == (True, [1.0])


@pytest.mark.parametrize("lost", [False, True])
async def test_it_is_given_up_after_an_hour(lost: bool) -> None:
    peer = RefusingPeer(*[DOWN] * 1000)
    peer.lost = lost  # which may be said of a session by mistake
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        await anyio.lowlevel.checkpoint()
        rests.append(seconds)

    with pytest.raises(SessionError, match="503"):
        await say(peer, 0, {}, LIMIT_S, rest=rest, wanted=lambda: True)
    assert 3600.0 <= sum(rests) <= 3700.0


async def test_what_the_server_refuses_for_good_is_not_said_again() -> None:
    peer = RefusingPeer(SessionError("HTTP 400"))
    with pytest.raises(SessionError, match="400"):
        await said(peer)
    assert not peer.said


async def test_what_is_no_trouble_of_the_servers_passes() -> None:
    class Broken(RefusingPeer):
        async def answer(self, *about: Any) -> None:
            await anyio.lowlevel.checkpoint()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await said(Broken())


@pytest.mark.parametrize(("wanted", "tries"), [([False], 0), ([True, False], 1)])
async def test_nothing_is_said_to_who_waits_for_it_no_more(wanted: list[bool], tries: int) -> None:
    peer = RefusingPeer(DOWN, DOWN)
    assert (await said(peer, wanted=wanted))[0] is False
    assert len(peer.refusals) == 2 - tries


# ── questions of calls that are no tasks ──────────────────────────────────────────────────────

NAME: Final[JSONObject] = {
    "id": 7,
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object"}},
}


def ask(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={})


class Plain:
    """A question that is being answered over a connection that fails once."""

    def __init__(self) -> None:
        self.peer = RefusingPeer(ConnectionLostError("HTTP 503", retryable=True))
        self.questions = PlainQuestions(Callbacks(elicitation=ask), LIMIT_S)

    async def answer(self) -> None:
        assert self.questions.add(self.peer, NAME)
        with anyio.fail_after(LIMIT_S):
            await self.questions.answer(self.peer, NAME)


@requirement("law:3")
async def test_the_answer_to_a_call_that_is_no_task_is_said_until_the_server_has_it() -> None:
    plain = Plain()
    await plain.answer()
    assert plain.peer.said == [{"action": "accept", "content": {}}]
    assert plain.questions.add(plain.peer, NAME), "which is another by now"


@pytest.mark.parametrize("how", ["taken back", "another has its ID", "its like has its ID"])
async def test_it_is_not_said_again_if_the_question_is_over_meanwhile(how: str) -> None:
    plain = Plain()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(plain.answer)
        with anyio.fail_after(LIMIT_S):
            await plain.peer.tried.wait()
        if how == "taken back":
            plain.questions.withdraw(plain.peer, 7)
        elif how == "another has its ID":
            assert plain.questions.add(plain.peer, {**NAME, "params": {}})
        else:
            plain.questions.withdraw(plain.peer, 7, like := dict(NAME))
            assert plain.questions.add(plain.peer, like), "the answer may have arrived though nobody says so"
    assert not plain.peer.said
    # Whoever has the ID now is not forgotten with it.
    assert plain.questions.add(plain.peer, {**NAME, "params": {}}) is (how != "another has its ID")


async def test_what_comes_twice_before_it_is_answered_is_asked_once() -> None:
    plain = Plain()
    assert plain.questions.add(plain.peer, NAME)
    plain.questions.withdraw(plain.peer, 7, dict(NAME))
    assert not plain.questions.add(plain.peer, dict(NAME))
    await plain.questions.answer(plain.peer, NAME)
    assert len(plain.peer.said) == 1
