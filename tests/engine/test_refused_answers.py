"""A refused answer is not an answer: its question opens again, with the server's words."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import (
    CredentialRefusedError,
    Inbox,
    InputUnansweredError,
    MemoryJournal,
    Question,
    QuestionWithdrawnError,
    TaskNotFoundError,
    TasksClient,
)
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.testing import (
    ErrorReply,
    Fault,
    FaultPlan,
    Garbled,
    HttpError,
    LostReply,
    LostRequest,
    ManualClock,
    Point,
    ScriptedServer,
    Unheeded,
    Unreachable,
    ask,
    complete,
    form,
    kill,
    scripted_client,
    text_result,
    work,
)
from tests._results import text

from .world import NO_JITTER

pytestmark = pytest.mark.anyio

UNKNOWN: Final = "version 9.9 does not exist"
WHICH: Final = form("Which version?", version="string")


def version(number: str) -> ElicitResult:
    return ElicitResult(action="accept", content={"version": number})


def refuse(answers: Any) -> str | None:
    said = [(answer.get("content") or {}).get("version") for answer in answers.values()]
    return UNKNOWN if "9.9" in said else None


class Person:
    """Answers one after another, and remembers the questions."""

    def __init__(self, *numbers: str) -> None:
        self._numbers = list(numbers)
        self.asked: list[Question] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(context.question)
        return version(self._numbers.pop(0) if len(self._numbers) > 1 else self._numbers[0])

    @property
    def told(self) -> list[str | None]:
        """The words that came with each question."""
        return [question.refused for question in self.asked]


class Shop:
    """A server that asks for a version and refuses 9.9, its clock, and a journal that outlives clients."""

    def __init__(self, *, late_answers: bool = True) -> None:
        self.clock = ManualClock()
        self.server = ScriptedServer(clock=self.clock)
        self.journal = MemoryJournal()
        steps = [ask("version", WHICH, refuse=refuse), work(3.0), complete(text_result("deployed"))]
        self.server.tool("deploy", steps, poll_interval_ms=5000, settle_s=0.0, late_answers=late_answers)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[TasksClient]:
        options = {"journal": self.journal, "poll": NO_JITTER, **options}
        with anyio.fail_after(20):
            async with scripted_client(self.server.session(), **options) as client:
                yield client

    async def end_of(self, work: Callable[[], Awaitable[Any]], seconds: float = 3600.0) -> Any:
        """The result of something, or its error, while time passes."""
        ends: list[Any] = []

        async def run() -> None:
            try:
                ends.append(await work())
            except Exception as error:
                ends.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await self.clock.advance(seconds)
            tasks.cancel_scope.cancel()
        return ends[0] if ends else None

    @property
    def sent(self) -> list[JSONObject]:
        """The versions that were sent, in order."""
        updates = self.server.witness.log("tasks/update")
        return [update.params["inputResponses"]["version"]["content"]["version"] for update in updates]


# ── what happens ──────────────────────────────────────────────────────────────────────────────


async def test_the_host_is_asked_again_with_the_servers_words_and_its_next_answer_is_sent() -> None:
    shop, person = Shop(), Person("9.9", "1.2")
    async with shop.client(elicitation=person) as client:
        assert text(await shop.end_of(lambda: client.call_tool("deploy"))) == "deployed"
    assert person.told == [None, UNKNOWN]
    assert person.asked[0].question_id != person.asked[1].question_id, "each asking has its own first answer"
    assert shop.sent == ["9.9", "9.9", "1.2"], "one of several servers may not have heard of the task"
    updates = shop.server.witness.log("tasks/update")
    looks = [
        poll.at for poll in shop.server.witness.log("tasks/get") if updates[0].at < poll.at <= updates[2].at
    ]
    assert looks[-1] - looks[0] >= 5.0
    shop.server.witness.check()


async def test_one_replica_that_does_not_know_the_task_neither_ends_the_wait_nor_asks_anybody_again() -> None:
    shop, person = Shop(), Person("1.2")
    shop.server.misbehave("tasks/update", ErrorReply(-32602, "Failed to retrieve task: Task not found"))
    async with shop.client(elicitation=person) as client:
        assert text(await shop.end_of(lambda: client.call_tool("deploy"))) == "deployed"
    assert person.told == [None]
    assert shop.sent == ["1.2", "1.2"]


REFUSALS: Final[dict[str, tuple[Fault, str]]] = {
    "-32602": (ErrorReply(-32602, "not that"), "not that"),
    "-32602 at HTTP 400": (ErrorReply(-32602, "not that", http_status=400), "not that"),
    "-32600": (ErrorReply(-32600, "not that"), "not that"),
    "-32700": (ErrorReply(-32700, "not that"), "not that"),
    "-32000": (ErrorReply(-32000, "not that"), "not that"),
    "of the server's own": (ErrorReply(4711, "not that"), "not that"),
    "without words": (ErrorReply(-32602, ""), "JSON-RPC error -32602"),
    "HTTP 400": (HttpError(400), "HTTP 400"),
    "HTTP 403": (HttpError(403), "HTTP 403"),
    "HTTP 413": (HttpError(413), "HTTP 413"),
    "HTTP 422": (HttpError(422), "HTTP 422"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_question_opens_again_whichever_way_the_server_says_no(refusal: str) -> None:
    fault, words = REFUSALS[refusal]
    shop, person = Shop(), Person("1.1", "1.2")
    shop.server.misbehave("tasks/update", fault, fault)
    async with shop.client(elicitation=person) as client:
        assert text(await shop.end_of(lambda: client.call_tool("deploy"))) == "deployed"
    assert person.told == [None, words]
    assert shop.sent == ["1.1", "1.1", "1.2"]


FAILURES: Final[dict[str, Fault]] = {
    "-32603": ErrorReply(-32603),
    "a time-out of the server's": ErrorReply(-32001, "Request timed out"),
    "-32602 at HTTP 503": ErrorReply(-32602, "no", http_status=503),
    "HTTP 404": HttpError(404),
    "HTTP 429": HttpError(429),
    "HTTP 500": HttpError(500),
    "a lost request": LostRequest(),
    "a lost reply": LostReply(),
    "no connection": Unreachable(),
    "a page of HTML": Garbled(),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_what_is_no_refusal_has_the_same_answer_sent_until_it_is_taken(failure: str) -> None:
    shop, person = Shop(), Person("1.2", "1.3")
    shop.server.misbehave("tasks/update", *[FAILURES[failure]] * 4)
    async with shop.client(elicitation=person) as client:
        assert text(await shop.end_of(lambda: client.call_tool("deploy"))) == "deployed"
    assert person.told == [None]
    assert set(shop.sent) == {"1.2"}


@pytest.mark.parametrize("failure", [LostRequest(), LostReply(), ErrorReply(-32603), HttpError(500)], ids=str)
async def test_an_answer_that_may_have_been_taken_before_it_was_refused_stays(failure: Fault) -> None:
    """Some servers refuse an answer that they have taken before. Another one must not follow."""
    shop, person = Shop(late_answers=False), Person("9.9", "1.2")
    shop.server.misbehave("tasks/update", failure)
    async with shop.client(elicitation=person) as client:
        error = await shop.end_of(lambda: client.call_tool("deploy"))
        if failure == LostReply():
            refused = "the server itself has refused the first send, and its reply was lost"
            assert shop.server.witness.questions_answered == set(), refused
        assert isinstance(error, InputUnansweredError)
        assert f"which it may have taken before: {UNKNOWN}" in str(error)
        assert (error.questions, error.keys) == ((), ("version",))
        (handle,) = await client.resume()
        again = await shop.end_of(handle.result)
        assert isinstance(again, InputUnansweredError)
    assert person.told == [None]
    assert set(shop.sent) == {"9.9"}
    shop.server.witness.check()


@pytest.mark.parametrize("failure", [Unreachable(), HttpError(429)], ids=str)
async def test_an_answer_that_surely_did_not_arrive_may_be_refused_afterwards(failure: Fault) -> None:
    shop, person = Shop(), Person("9.9", "1.2")
    shop.server.misbehave("tasks/update", failure)
    async with shop.client(elicitation=person) as client:
        assert text(await shop.end_of(lambda: client.call_tool("deploy"))) == "deployed"
    assert person.told == [None, UNKNOWN]


async def test_an_answer_that_was_acknowledged_and_lost_is_never_another_one() -> None:
    shop, person = Shop(), Person("1.2", "1.3")
    refused = ErrorReply(-32602, "answered already")
    shop.server.misbehave("tasks/update", Unheeded(), refused, refused, refused)
    async with shop.client(elicitation=person) as client:
        assert text(await shop.end_of(lambda: client.call_tool("deploy"))) == "deployed"
    assert person.told == [None]
    assert set(shop.sent) == {"1.2"}


async def test_a_task_that_the_server_does_not_know_at_all_is_not_found() -> None:
    shop, person = Shop(), Person("1.2")
    unknown = ErrorReply(-32602, "Task not found")
    shop.server.on_request = lambda arrival: (
        unknown if arrival.method in ("tasks/get", "tasks/update") and person.asked else None
    )
    async with shop.client(elicitation=person) as client:
        error = await shop.end_of(lambda: client.call_tool("deploy"))
    assert isinstance(error, TaskNotFoundError)
    assert len(person.asked) == 1


async def test_a_credential_that_was_refused_parks_the_call_and_the_answer_may_be_refused_later() -> None:
    shop, person = Shop(), Person("9.9", "1.2")
    shop.server.misbehave("tasks/update", HttpError(401))
    async with shop.client(elicitation=person) as client:
        assert isinstance(await shop.end_of(lambda: client.call_tool("deploy")), CredentialRefusedError)
        (handle,) = await client.resume()
        assert text(await shop.end_of(handle.result)) == "deployed"
    assert person.told == [None, UNKNOWN]


async def test_a_method_that_the_server_does_not_have_says_nothing_of_the_answer() -> None:
    shop, person = Shop(), Person("1.2")
    shop.server.misbehave("tasks/update", ErrorReply(-32601, "Method not found"))
    async with shop.client(elicitation=person) as client:
        error = await shop.end_of(lambda: client.call_tool("deploy"))
        assert "Method not found" in str(error)
        (handle,) = await client.resume()
        assert text(await shop.end_of(handle.result)) == "deployed"
    assert person.told == [None]


# ── how often ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answers", ["error.questions", "handle.questions()", "inbox", "question_id"])
async def test_after_three_refusals_the_call_parks_and_others_may_still_answer(answers: str) -> None:
    shop, person = Shop(), Person("9.9")
    async with shop.client(elicitation=person) as client, Inbox(shop.journal) as inbox:
        error = await shop.end_of(lambda: client.call_tool("deploy", idempotency_key="k"))
        assert isinstance(error, InputUnansweredError)
        assert UNKNOWN in str(error)
        assert person.told == [None, UNKNOWN, UNKNOWN]
        (question,) = error.questions
        assert question.refused == UNKNOWN
        assert pickle.loads(pickle.dumps(question)).refused == UNKNOWN
        again = await shop.end_of(lambda: client.call_tool("deploy", idempotency_key="k"))
        assert isinstance(again, InputUnansweredError)
        assert len(person.asked) == 3, "nobody is asked without end"
        match answers:
            case "error.questions":
                await question.answer(version("1.2"))
            case "handle.questions()":
                (shown,) = await error.handle.questions()  # type: ignore[union-attr]
                await shown.answer(version("1.2"))
            case "inbox":
                (shown,) = await inbox.questions()
                assert shown.refused == UNKNOWN
                await shown.answer(version("1.2"))
            case _:
                await client.answer(question.question_id, version("1.2"))
        assert text(await shop.end_of(error.handle.result)) == "deployed"  # type: ignore[union-attr]
    assert shop.sent == ["9.9"] * 6 + ["1.2"]
    shop.server.witness.check()


async def test_an_answer_from_outside_is_refused_and_the_next_one_is_taken() -> None:
    """Nobody drives the call when it is answered, and a worker takes it up each time."""
    shop = Shop()
    async with shop.client(elicitation="later") as client, Inbox(shop.journal) as inbox:
        await client.start_tool("deploy", label="web")
        await shop.clock.advance(10)
        (first,) = await inbox.questions()
        assert first.refused is None
    async with Inbox(shop.journal) as inbox:
        await first_of(await inbox.questions()).answer(version("9.9"))
    async with shop.client(elicitation="later") as client, Inbox(shop.journal) as inbox:
        adopted = client.adopt()
        handle = await anext(adopted)
        assert await shop.end_of(handle.result, 60.0) is None
        second = first_of(await inbox.questions())
        assert (second.refused, second.label) == (UNKNOWN, "web")
        with pytest.raises(QuestionWithdrawnError, match="refused an answer to it"):
            await inbox.answer(first.question_id, version("9.9"))
        await inbox.answer(second.question_id, version("1.2"))
        assert text(await shop.end_of(handle.result)) == "deployed"
    assert shop.sent == ["9.9", "9.9", "1.2"]
    shop.server.witness.check()


def first_of(questions: list[Question]) -> Question:
    (question,) = questions
    return question


# ── crashes ───────────────────────────────────────────────────────────────────────────────────


POINTS: Final[dict[str, tuple[Point, int]]] = {
    "after the first refusal": ("commit: UpdateRefused", 1),
    "after the first look": ("commit: Observed", 2),
    "after the second refusal": ("commit: UpdateRefused", 2),
    "once it is open again": ("commit: Observed", 3),
    "once it was asked again": ("send: a question to the host", 2),
}


@pytest.mark.parametrize("point", POINTS)
async def test_a_process_that_dies_between_refusal_and_asking_leaves_the_words(point: str) -> None:
    shop, person, plan = Shop(), Person("9.9", "1.2"), FaultPlan()
    name, nth = POINTS[point]
    plan.at(name, "after", kill, nth=nth)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # a group around KilledError
        async with shop.client(elicitation=person, observer=plan) as client:
            await shop.end_of(lambda: client.call_tool("deploy"))
    assert plan.killed
    may_be_taken = point == "after the first look"  # it was about to be sent once more
    async with shop.client(elicitation=person) as client:
        (handle,) = await client.resume()
        end = await shop.end_of(handle.result)
    if may_be_taken:
        assert isinstance(end, InputUnansweredError)
        assert person.told == [None]
    else:
        assert text(end) == "deployed"
        assert person.told[:2] == [None, UNKNOWN]
        assert shop.sent[-1] == "1.2"
    shop.server.witness.check()


@pytest.mark.parametrize("failure", [Unreachable(), LostReply(), HttpError(503)], ids=str)
async def test_an_owner_that_was_overtaken_sends_its_answer_no_more(failure: Fault) -> None:
    """The answer may have been refused meanwhile, and another one taken."""
    shop, person = Shop(), Person("1.1")
    shop.server.misbehave("tasks/update", failure)
    async with shop.client(elicitation=person) as client, shop.client(elicitation="later") as other:
        await other.start_tool("deploy", label="theirs")
        await client.start_tool("deploy", label="ours")
        while not shop.sent:
            await shop.clock.advance(1.0)
        theirs, ours = await client.records()
        assert (theirs.label, ours.label) == ("theirs", "ours")
        assert theirs.owner is not None
        await shop.journal.take(ours.record_id, theirs.owner, {ours.owner or ""})
        await shop.clock.advance(60.0)
    assert shop.sent == ["1.1"]


# ── foreign text ──────────────────────────────────────────────────────────────────────────────


async def test_the_servers_words_are_short_printable_and_without_the_task_id() -> None:
    shop, person = Shop(), Person("1.1", "1.2")
    shop.server = ScriptedServer(clock=shop.clock, new_task_id=lambda: "task-0123456789abcdef")
    steps = [ask("version", WHICH), complete(text_result("deployed"))]
    shop.server.tool("deploy", steps, poll_interval_ms=5000)
    words = "\x1b[2J no\nsuch task-0123456789abcdef " + "x" * 1_000_000
    shop.server.misbehave("tasks/update", *[ErrorReply(-32602, words)] * 2)
    async with shop.client(elicitation=person) as client:
        assert text(await shop.end_of(lambda: client.call_tool("deploy"))) == "deployed"
    (said,) = [one for one in person.told if one is not None]
    assert said.startswith("[2J no such task-01… xxx")
    assert len(said) <= 301
    assert said.isprintable()
