"""Questions as things: listed, left for later, answered and cancelled by whoever has the journal."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import CreateMessageResult, ElicitRequestFormParams, ElicitResult, ListRootsResult, TextContent

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import (
    AlreadyAnsweredError,
    InputUnansweredError,
    InvalidAnswerError,
    OutcomeUnknownError,
    QuestionWithdrawnError,
    TaskCancelledError,
    TasksClientError,
    WaitTimeoutError,
)
from mcp_tasks_client.handle import TaskHandle
from mcp_tasks_client.inbox import Inbox
from mcp_tasks_client.journal.base import Instruction, Journal, Listener
from mcp_tasks_client.journal.sqlite.journal import SqliteJournal
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.machine.record import TaskRecord, reference_of
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.questions.question import CANCEL, Question
from mcp_tasks_client.sessions.base import TaskRef
from mcp_tasks_client.testing import (
    FaultPlan,
    LostReply,
    ScriptedServer,
    Stalled,
    ask,
    ask_first,
    complete,
    form,
    input_required,
    kill,
    scripted_client,
    text_result,
    work,
)
from tests._results import text
from tests.engine.world import ASK, DONE, TASK, YES, Asked, World
from tests.kit.probed_journal import ProbedJournal
from tests.scripted_session import STALL

pytestmark = pytest.mark.anyio

ADA = ElicitResult(action="accept", content={"name": "Ada"})
BOB = ElicitResult(action="accept", content={"name": "Bob"})
WHO = form("Who are you?", name="string")
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 9},
}
ROOTS = {"method": "roots/list"}
KEY = "order-42"


def named(answers: Any) -> Any:
    return text_result(
        answers["who"]["content"]["name"] if answers["who"]["action"] == "accept" else "nobody"
    )


@pytest.fixture
def server() -> ScriptedServer:
    server = ScriptedServer()
    quick: Any = {"poll_interval_ms": 20, "settle_s": 0.01}
    server.tool("sign", [ask("who", WHO), complete(named)], **quick)
    server.tool("sign_calmly", [ask("who", WHO), complete(named)], poll_interval_ms=1000, settle_s=0.01)
    server.tool("sign_slowly", [ask("who", WHO), work(60), complete(named)], **quick)
    server.tool("ask_first", [ask_first({"who": WHO}), complete(named)], **quick)
    server.tool(
        "ask_all",
        [ask("who", WHO), ask("model", SAMPLE), ask("roots", ROOTS), complete(text_result("done"))],
        **quick,
    )
    return server


@pytest.fixture(params=["memory", "sqlite"])
def make_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Journal]:
    """Each a journal of one client; all keep the same records."""
    if request.param == "memory":
        shared = MemoryJournal()
        return lambda: shared
    return lambda: SqliteJournal(tmp_path / "journal.sqlite3")


@asynccontextmanager
async def clients(
    server: ScriptedServer, make_journal: Callable[[], Journal], *each: dict[str, Any]
) -> AsyncIterator[list[TasksClient]]:
    opened = [scripted_client(server.session(), journal=make_journal(), **options) for options in each]
    with anyio.fail_after(20):
        for client in opened:
            await client.__aenter__()
        try:
            yield opened
        finally:
            with anyio.CancelScope(shield=True):
                for client in opened:
                    await client.__aexit__(None, None, None)
    server.witness.check()


async def first_question(of: TasksClient | TaskHandle | Inbox) -> Question:
    """The first question, once there is one."""
    while True:
        for question in await of.questions():
            return question
        await anyio.sleep(0.01)


async def call(client: TasksClient, tool: str, key: str | None, results: list[str]) -> None:
    results.append(text(await client.call_tool(tool, idempotency_key=key)))


LATER: dict[str, Any] = {"elicitation": "later"}


# ── what a question is ────────────────────────────────────────────────────────────────────────


async def test_a_question_says_what_is_asked_and_nothing_of_how_the_server_names_it(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, LATER) as (client,):
        handle = await client.start_tool("sign", label="contract of Ada")
        question = await first_question(handle)
        assert (question.tool, question.label) == ("sign", "contract of Ada")
        assert (question.endpoint, question.principal) == ("scripted", "")
        assert question.method == "elicitation/create"
        assert isinstance(question.params, ElicitRequestFormParams)
        assert question.params.message == "Who are you?"
        assert question.record_id == handle.reference["record_id"]
        assert handle.task_id is not None
        for shown in (repr(question), question.question_id, str(pickle.dumps(question))):
            assert handle.task_id not in shown
            assert "'who'" not in shown
        assert await client.questions() == [question]
        await handle.cancel()


async def test_a_question_that_was_pickled_is_answered_by_its_id(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, LATER, {}) as (driver, other):
        handle = await driver.start_tool("sign")
        question = await first_question(handle)
        copied = pickle.loads(pickle.dumps(question))
        assert copied == question
        with pytest.raises(TasksClientError, match="detached"):
            await copied.accept({"name": "Ada"})
        await other.answer(copied.question_id, ADA)
        assert text(await handle.result()) == "Ada"


@pytest.mark.parametrize("name", ["", "who", "a-b", 3, "x" * 16])
async def test_what_is_no_question_id_is_refused(server: ScriptedServer, name: Any) -> None:
    async with clients(server, MemoryJournal, LATER) as (client,):
        with pytest.raises(ValueError, match="question_id"):
            await client.answer(name, ADA)


# ── answered from outside ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tool", ["sign", "ask_first"])
@pytest.mark.parametrize("who", ["the client", "another client"])
async def test_a_question_that_is_left_for_later_is_answered_by_whoever_has_the_journal(
    server: ScriptedServer, make_journal: Callable[[], Journal], who: str, tool: str
) -> None:
    async with (
        clients(server, make_journal, LATER, {}) as (driver, other),
        anyio.create_task_group() as tasks,
    ):
        results: list[str] = []
        tasks.start_soon(call, driver, tool, KEY, results)
        question = await first_question(driver if who == "the client" else other)
        await question.accept({"name": "Ada"})
        with anyio.fail_after(4):  # the driver is told, also where the journal is a file: a look takes 5 s
            while not results:
                await anyio.sleep(0.01)
        assert results == ["Ada"]
        assert await driver.questions() == []


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("by", ["the question", "the handle", "the client", "another client", "the inbox"])
async def test_what_was_typed_into_a_form_that_is_not_accepted_goes_nowhere(
    server: ScriptedServer, make_journal: Callable[[], Journal], by: str, action: Any
) -> None:
    typed = ElicitResult(action=action, content={"name": "half typed"})
    both = clients(server, make_journal, LATER, {})
    async with both as (driver, other), Inbox(make_journal()) as inbox:
        handle = await driver.start_tool("sign")
        question = await first_question(handle)
        if by == "the question":
            await question.answer(typed)
        else:
            answerers = {
                "the handle": handle,
                "the client": driver,
                "another client": other,
                "the inbox": inbox,
            }
            await answerers[by].answer(question.question_id, typed)
        assert text(await handle.result()) == "nobody"
    (update,) = server.witness.log("tasks/update")
    assert update.params["inputResponses"] == {"who": {"action": action}}
    assert typed.content == {"name": "half typed"}, "the host's object stays as it was"


async def test_a_question_before_a_call_without_a_key_is_answered_where_it_is_made(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with (
        clients(server, make_journal, LATER, {}) as (driver, other),
        anyio.create_task_group() as tasks,
    ):
        results: list[str] = []
        tasks.start_soon(call, driver, "ask_first", None, results)
        question = await first_question(driver)
        assert await other.questions() == []
        with pytest.raises(QuestionWithdrawnError):  # of which the journal knows nothing
            await other.answer(question.question_id, ADA)
        await question.accept({"name": "Ada"})
    assert results == ["Ada"]


async def test_each_kind_of_question_can_be_answered_later(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    all_later = {"elicitation": "later", "sampling": "later", "roots": "later"}
    said = CreateMessageResult(role="assistant", content=TextContent(type="text", text="!"), model="m")
    async with clients(server, make_journal, all_later, {}) as (driver, other):
        handle = await driver.start_tool("ask_all")
        await (await first_question(other)).answer(ADA)
        for answer in (said, ListRootsResult(roots=[])):
            while (question := await first_question(other)).method == "elicitation/create":
                await anyio.sleep(0.01)
            await question.answer(answer)
            while [one.question_id for one in await other.questions()] == [question.question_id]:
                await anyio.sleep(0.01)
        assert text(await handle.result()) == "done"


async def test_a_parked_call_that_was_answered_goes_on_when_it_is_taken_up(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, {}) as (client,):
        with pytest.raises(InputUnansweredError) as caught:
            await client.call_tool("sign")
        (question,) = caught.value.questions
        await question.accept({"name": "Ada"})
        assert isinstance(caught.value.handle, TaskHandle)
        assert text(await caught.value.handle.result()) == "Ada"


async def _follow(handle: TaskHandle) -> str:
    return [task.status async for task in handle.updates()][-1]


async def _refresh(handle: TaskHandle) -> str:
    while (task := await handle.refresh()).status != "completed":
        pass
    return task.status


async def _take_out(handle: TaskHandle) -> str:
    async with handle.outcome() as result:
        return text(result)


@pytest.mark.parametrize("tells", [False, True], ids=["untold", "told"])
@pytest.mark.parametrize(
    ("wait", "end"),
    [
        (TaskHandle.result, None),
        (_follow, "completed"),
        (_refresh, "completed"),
        (_take_out, "Ada"),
    ],
    ids=["result", "updates", "refresh", "outcome"],
)
async def test_what_parked_a_call_is_not_told_once_it_was_answered(
    server: ScriptedServer,
    make_journal: Callable[[], Journal],
    wait: Callable[[TaskHandle], Any],
    end: str | None,
    tells: bool,
) -> None:
    async with clients(server, make_journal, {}, {}) as (client, other):
        handle = await client.start_tool("sign")
        question = await first_question(other)
        while (record := (await client.records())[0]).owner is not None:
            await anyio.sleep(0.01)
        if tells:
            with pytest.raises(InputUnansweredError):
                await wait(handle)
        await other.answer(question.question_id, ADA)
        assert record.status == "input_required"
        ended = await wait(handle)
        assert (text(ended) if end is None else ended) == (end or "Ada")


@pytest.mark.parametrize("key", [KEY, None])
async def test_what_parked_a_call_before_its_task_is_not_told_once_it_was_answered(
    server: ScriptedServer, make_journal: Callable[[], Journal], key: str | None
) -> None:
    async with clients(server, make_journal, {}) as (client,):
        with pytest.raises(InputUnansweredError) as raised:
            await client.start_tool("ask_first", idempotency_key=key)
        handle, (question,) = raised.value.handle, raised.value.questions
        assert isinstance(handle, TaskHandle)
        await question.accept({"name": "Ada"})
        assert await _follow(handle) == "completed"


async def test_who_repeats_a_call_under_its_key_is_not_told_what_was_answered_meanwhile(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, {}, {}) as (client, other):
        await client.start_tool("sign", idempotency_key=KEY)
        question = await first_question(other)
        while (await client.records())[0].owner is not None:
            await anyio.sleep(0.01)
        await other.answer(question.question_id, ADA)
        assert text(await client.call_tool("sign", idempotency_key=KEY)) == "Ada"


async def test_what_is_answered_while_nobody_drives_is_sent_by_whoever_resumes(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, {}) as (client,):
        with pytest.raises(InputUnansweredError) as caught:
            await client.call_tool("sign")
    error = pickle.loads(pickle.dumps(caught.value))
    async with clients(server, make_journal, {}) as (second,):
        await second.answer(error.questions[0].question_id, ADA)
        assert await second.questions() == []  # it has its answer, which waits to be sent
    async with clients(server, make_journal, {}) as (third,):
        (handle,) = await third.resume()
        assert text(await handle.result()) == "Ada"


class DeafForAWhile(MemoryJournal):
    """A journal whose listeners miss some instructions, as those of another process may for a second."""

    is_deaf = False

    def listen(self, listener: Listener) -> Callable[[], None]:
        return super().listen(lambda record_ids: None if self.is_deaf else listener(record_ids))


class Mute(MemoryJournal):
    """Tells nobody of instructions, and counts who listens."""

    listening = 0

    def listen(self, listener: Any) -> Callable[[], None]:
        self.listening += 1

        def stop() -> None:
            self.listening -= 1

        return stop


@pytest.mark.parametrize("tool", ["sign", "ask_first"])
async def test_what_was_left_is_read_when_the_call_is_taken_up_whether_or_not_the_journal_tells(
    server: ScriptedServer, tool: str
) -> None:
    journal = Mute()
    async with clients(server, lambda: journal, {}, {}) as (client, other):
        with pytest.raises(InputUnansweredError) as caught:
            await client.call_tool(tool, idempotency_key=KEY)
        await other.answer(caught.value.questions[0].question_id, ADA)
        assert text(await client.call_tool(tool, idempotency_key=KEY)) == "Ada"
        assert journal.listening == 0, "nobody listens while no call is driven"


async def test_round_after_round_before_a_call_is_answered_later(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    rounds = [ask_first({"who": WHO}), ask_first({"again": WHO}), complete(named)]
    server.tool("ask_twice", rounds, poll_interval_ms=20, settle_s=0.01)
    both = clients(server, make_journal, LATER, {})
    async with both as (driver, other), anyio.create_task_group() as tasks:
        results: list[str] = []
        tasks.start_soon(call, driver, "ask_twice", KEY, results)
        first = await first_question(other)
        await first.accept({"name": "Ada"})
        while (second := await first_question(other)).question_id == first.question_id:
            await anyio.sleep(0.01)
        await second.accept({"name": "Bob"})
    assert results == ["Ada"]


async def test_what_the_next_round_asks_has_another_name_though_no_time_has_passed() -> None:
    rounds = [
        {
            "resultType": "input_required",
            "inputRequests": {"k": form(asks, name="string")},
            "requestState": asks,
        }
        for asks in ("Who are you?", "And who are you?")
    ]
    world = World(calls=[*rounds, {"resultType": "complete", **text_result("done")}])
    async with world.client(**LATER) as driver, anyio.create_task_group() as tasks:
        results: list[str] = []
        tasks.start_soon(call, driver, "tool", KEY, results)
        for answer in (ADA, BOB):
            await world.clock.advance(0)
            (question,) = await driver.questions()
            await question.answer(answer)
    assert results == ["done"]


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("tool", ["sign", "ask_first"])
async def test_who_accepts_a_form_as_it_stands_gives_the_defaults_of_its_required_fields(
    server: ScriptedServer, make_journal: Callable[[], Journal], tool: str, key: str | None
) -> None:
    who = form("Who are you?", name={"type": "string", "default": "Ada"})
    quick: Any = {"poll_interval_ms": 20, "settle_s": 0.01}
    server.tool("sign", [ask("who", who), complete(named)], **quick)
    server.tool("ask_first", [ask_first({"who": who}), complete(named)], **quick)
    async with clients(server, make_journal, LATER) as (client,), anyio.create_task_group() as tasks:
        results: list[str] = []
        tasks.start_soon(call, client, tool, key, results)
        await (await first_question(client)).accept({})
    assert results == ["Ada"]


# ── the first answer counts ───────────────────────────────────────────────────────────────────


async def test_of_two_persons_who_answer_at_once_one_is_told_that_the_other_was_faster(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, LATER, {}, {}) as (driver, *persons):
        handle = await driver.start_tool("sign")
        question = await first_question(handle)
        sent, late = list[str](), list[AlreadyAnsweredError]()

        async def answer(client: TasksClient, answer: ElicitResult) -> None:
            try:
                await client.answer(question.question_id, answer)
                sent.append((answer.content or {})["name"])  # type: ignore[arg-type]
            except AlreadyAnsweredError as error:
                late.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, persons[0], ADA)
            tasks.start_soon(answer, persons[1], BOB)
        assert len(sent) == len(late) == 1
        assert not late[0].same
        assert text(await handle.result()) == sent[0]


async def test_of_two_who_answer_a_plain_call_at_once_one_is_told_that_the_other_was_faster(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, LATER) as (client,), anyio.create_task_group() as tasks:
        results: list[str] = []
        tasks.start_soon(call, client, "ask_first", None, results)
        question, sent, late = await first_question(client), list[str](), list[str]()

        async def answer(name: str) -> None:
            try:
                await question.accept({"name": name})
                sent.append(name)
            except AlreadyAnsweredError:
                late.append(name)

        async with anyio.create_task_group() as persons:
            for name in ("Ada", "Bob", "Eve"):
                persons.start_soon(answer, name)
        assert (len(sent), len(late)) == (1, 2)
    assert results == sent


@pytest.mark.parametrize("heeded", [True, False])
async def test_whoever_is_late_is_told_whether_the_answer_is_the_same(
    server: ScriptedServer, make_journal: Callable[[], Journal], heeded: bool
) -> None:
    async with clients(server, make_journal, LATER if heeded else {}, {}) as (driver, other):
        if heeded:
            handle = await driver.start_tool("sign_slowly")
            question = await first_question(other)
        else:
            with pytest.raises(InputUnansweredError) as caught:
                await driver.call_tool("sign_slowly")
            (question,) = caught.value.questions
        await other.answer(question.question_id, ADA)
        while heeded and handle.task is not None and handle.task.status == "input_required":
            await anyio.sleep(0.01)
        for answer, same in ((ADA, True), (BOB, False)):
            with pytest.raises(AlreadyAnsweredError) as late:
                await other.answer(question.question_id, answer)
            assert late.value.same is same
            assert "Ada" not in str(late.value)


@pytest.mark.parametrize(("answer", "same"), [(ADA, True), (BOB, False)], ids=["equal", "other"])
async def test_whoever_is_late_is_told_whether_the_answer_is_the_same_though_it_was_heeded_meanwhile(
    server: ScriptedServer, answer: ElicitResult, same: bool
) -> None:
    journal = ProbedJournal()
    async with clients(server, lambda: journal, LATER, {}) as (driver, other):
        handle = await driver.start_tool("sign_slowly")
        question = await first_question(other)

        async def be_late() -> None:
            await driver.answer(question.question_id, ADA)
            while await journal.instructions(question.record_id):
                await anyio.sleep(0.01)

        journal.before("instruct", be_late, nth=1)
        with pytest.raises(AlreadyAnsweredError) as late:
            await other.answer(question.question_id, answer)
        assert late.value.same is same
        await handle.cancel()


class CutOff(MemoryJournal):
    """Leaves the first instruction twice, as where the reply was lost. Others go on in between."""

    def __init__(self, is_over: Callable[[TaskRecord | None], bool]) -> None:
        super().__init__()
        self._is_over = is_over
        self._was_cut = False

    async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
        standing = await super().instruct(record_id, instruction)
        if self._was_cut:
            return standing
        self._was_cut = True
        while await self.instructions(record_id) or not self._is_over(await self.by_id(record_id)):
            await anyio.sleep(0.01)
        return await super().instruct(record_id, instruction)


@pytest.mark.parametrize("tool", ["sign_slowly", "ask_first"])
async def test_who_was_cut_off_while_the_answer_was_heeded_is_told_that_it_counts(
    server: ScriptedServer, tool: str
) -> None:
    server.tool("ask_first", [ask_first({"who": WHO}), work(60), complete(named)], poll_interval_ms=20)
    journal = CutOff(lambda record: record is not None and record.task_id is not None)
    async with (
        clients(server, lambda: journal, LATER, {}) as (driver, other),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(call, driver, tool, KEY, [])
        question = await first_question(other)
        await other.answer(question.question_id, ADA)
        assert server.witness.log("tasks/update" if tool == "sign_slowly" else "tools/call")
        tasks.cancel_scope.cancel()


async def test_who_was_cut_off_until_the_call_had_ended_is_not_told_that_nothing_was_sent(
    server: ScriptedServer,
) -> None:
    journal = CutOff(lambda record: record is None or record.finished)
    async with clients(server, lambda: journal, LATER, {}) as (driver, other):
        handle = await driver.start_tool("sign")
        question = await first_question(other)
        with pytest.raises(QuestionWithdrawnError, match="unless the connection to the journal broke"):
            await other.answer(question.question_id, ADA)
        assert text(await handle.result()) == "Ada"


# ── an answer and a cancel at once ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("by", ["an inbox", "the driver"])
@pytest.mark.parametrize("tool", ["sign_slowly", "ask_first"])
async def test_whose_answer_comes_after_a_cancel_is_told_that_it_is_not_sent(
    server: ScriptedServer, tool: str, by: str
) -> None:
    journal = ProbedJournal()
    async with (
        clients(server, lambda: journal, LATER, {}) as (driver, other),
        Inbox(journal) as inbox,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(call_and_lose, driver, tool)
        question = await first_question(other)
        record = await inbox.record(question.record_id)
        assert record is not None

        async def cancel_first() -> None:
            if by == "an inbox":
                await inbox.cancel(record)
            else:
                await (await driver.attach(reference_of(record))).cancel()

        journal.before("instruct", cancel_first, when=lambda _, left: left.name != CANCEL, nth=1)
        with pytest.raises(QuestionWithdrawnError):
            await other.answer(question.question_id, ADA)
    assert not server.witness.log("tasks/update")


@pytest.mark.parametrize("tool", ["sign", "ask_first"])
async def test_the_answer_of_a_callback_that_comes_after_a_cancel_is_not_sent(
    server: ScriptedServer, make_journal: Callable[[], Journal], tool: str
) -> None:
    async def cancel_first(context: Any, params: Any) -> ElicitResult:
        (record,) = await inbox.records()
        await inbox.cancel(record)
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with (
        clients(server, make_journal, {"elicitation": cancel_first}) as (client,),
        Inbox(make_journal()) as inbox,
    ):
        await call_and_lose(client, tool)
    assert not server.witness.log("tasks/update")
    assert len(server.witness.log("tools/call")) == 1


async def call_and_lose(client: TasksClient, tool: str) -> None:
    with pytest.raises(TaskCancelledError):
        await client.call_tool(tool, idempotency_key=KEY)


async def test_an_answer_that_was_left_before_a_cancel_is_sent_before_it() -> None:
    """Both are found at once. Its person was told that it counts, and the next question is not put."""
    asks = input_required(TASK, {"k": ASK}, poll_interval_ms=1000)
    world, asked = World(gets={TASK: [asks]}), Asked(STALL)
    world.journal = DeafForAWhile()
    async with world.client(elicitation=asked) as client, Inbox(world.journal) as inbox:
        handle = await client.start_tool("tool")
        await world.clock.advance(1)
        (question,) = await inbox.questions()
        (record,) = await inbox.records()
        world.journal.is_deaf = True
        await question.answer(YES)
        world.journal.is_deaf = False
        await inbox.cancel(record)
        await world.clock.advance(0)
        sent = [one.method for one in world.server.sent if one.method in ("tasks/update", "tasks/cancel")]
        assert sent == ["tasks/update", "tasks/cancel"]
        del handle


async def test_a_callback_that_waits_is_withdrawn_when_somebody_else_has_answered(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    called, withdrawn = anyio.Event(), anyio.Event()

    async def wait(context: Any, params: Any) -> ElicitResult:
        called.set()
        try:
            await anyio.sleep_forever()
        finally:
            withdrawn.set()
        raise AssertionError

    async with clients(server, make_journal, {"elicitation": wait}, {}) as (driver, other):
        handle = await driver.start_tool("sign_slowly")
        await called.wait()
        await other.answer((await first_question(other)).question_id, ADA)
        await withdrawn.wait()
        assert not handle.done
        left = make_journal()
        async with left:
            assert await left.instructions(handle.reference["record_id"]) == []  # it is part of the record
        await handle.cancel()


async def test_what_others_have_answered_is_not_put_when_the_question_before_it_is_withdrawn() -> None:
    """Both answers are found at once, as after a request that took its time."""
    asks = input_required(TASK, {"k": ASK, "k2": ASK}, poll_interval_ms=1000)
    world, asked = World(gets={TASK: [asks]}), Asked(STALL)
    world.journal = DeafForAWhile()
    async with world.client(elicitation=asked) as client, Inbox(world.journal) as inbox:
        handle = await client.start_tool("tool")
        await world.clock.advance(1)
        first, second = await inbox.questions()
        world.journal.is_deaf = True
        await first.answer(YES)
        world.journal.is_deaf = False
        await second.answer(YES)
        world.server.gets[TASK] = [DONE]
        await world.clock.advance(2)
        assert handle.done
    assert asked.keys == ["k"]
    assert [sent.answers.keys() for sent in world.server.log("tasks/update")] == [{"k", "k2"}]


@pytest.mark.parametrize("left", ["an answer", "a cancel"])
async def test_what_others_leave_while_the_driver_reads_is_heeded_without_a_poll(left: str) -> None:
    asks = input_required(TASK, {"k": ASK, "k2": ASK}, poll_interval_ms=60_000)
    world = World(gets={TASK: [asks]})
    world.journal = journal = ProbedJournal()
    async with world.client(**LATER) as client, Inbox(journal) as inbox:
        await client.start_tool("tool")
        await world.clock.advance(1)
        (record,) = await inbox.records()
        first, second = await inbox.questions()
        is_left = False

        async def leave() -> None:
            """Before the driver has what it has read."""
            nonlocal is_left
            is_left = True
            await (second.answer(YES) if left == "an answer" else inbox.cancel(record))
            for _ in range(10):  # until the driver was told
                await anyio.lowlevel.checkpoint()

        journal.after("instructions", leave, when=lambda found, record_id: bool(found) and not is_left)
        # As another process leaves it: who answers here would read as well.
        body = json.dumps(YES.model_dump(exclude_none=True), sort_keys=True)
        await journal.instruct(record.record_id, Instruction(first.question_id, body, 7.0))
        await world.clock.advance(1)
        assert is_left
        answered = {key for sent in world.server.log("tasks/update") for key in sent.answers}
        cancels = len(world.server.log("tasks/cancel"))
        assert len(world.polled_at()) == 1
    if left == "an answer":
        assert answered == {"k", "k2"}
    else:
        assert cancels == 1


@pytest.mark.parametrize("left", ["an answer", "a cancel"])
async def test_what_others_leave_while_a_poll_hangs_is_heeded_before_the_next_form(
    server: ScriptedServer, make_journal: Callable[[], Journal], left: str
) -> None:
    server.tool("ask_two", [ask({"who": WHO, "whom": WHO}), complete(named)], poll_interval_ms=20)
    first, second = anyio.Event(), anyio.Event()
    asked: list[Question | None] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(context.question)
        first.set()
        await second.wait()
        return ADA

    async with clients(server, make_journal, {"elicitation": answer}, {}) as (driver, other):
        handle = await driver.start_tool("ask_two")
        await first.wait()
        server.misbehave("tasks/get", Stalled())
        with anyio.fail_after(30):
            while not isinstance(server.witness.log("tasks/get")[-1].fault, Stalled):
                await anyio.sleep(0.01)
            (waits,) = (one for one in await other.questions() if one not in asked)
            if left == "an answer":
                await waits.accept({"name": "Bob"})
            else:
                await (await other.attach(handle.reference)).cancel()
            second.set()
            while not server.witness.log("tasks/update" if left == "an answer" else "tasks/cancel"):
                await anyio.sleep(0.01)
            await anyio.wait_all_tasks_blocked()
        assert len(asked) == 1
        await handle.cancel()


async def test_a_callback_that_is_late_is_told_so_once_and_its_answer_is_not_sent(
    server: ScriptedServer, make_journal: Callable[[], Journal], caplog: pytest.LogCaptureFixture
) -> None:
    """The form and the callback answer at the same moment."""
    caplog.set_level(logging.INFO, "mcp_tasks_client")
    others: list[TasksClient] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        with anyio.CancelScope(shield=True):  # it cannot be withdrawn any more
            await others[0].answer(context.question.question_id, ADA)
        return BOB

    async with clients(server, make_journal, {"elicitation": answer}, {}) as (driver, other):
        others.append(other)
        # The task does not end before the callback has returned.
        assert text(await driver.call_tool("sign_calmly")) == "Ada"
    assert [getattr(line, "mcp_event", "") for line in caplog.records].count("late answer") == 1
    assert "Ada" not in caplog.text
    assert "Bob" not in caplog.text


async def test_a_callback_that_fails_after_somebody_has_answered_parks_nothing(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    others: list[TasksClient] = []

    async def fail(context: Any, params: Any) -> ElicitResult:
        with anyio.CancelScope(shield=True):
            await others[0].answer(context.question.question_id, ADA)
            await anyio.sleep(0.1)
        raise RuntimeError("nobody is here")

    async with clients(server, make_journal, {"elicitation": fail}, {}) as (driver, other):
        others.append(other)
        assert text(await driver.call_tool("sign")) == "Ada"


# ── what is no answer ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ElicitResult(action="accept", content={"name": 3}), "name"),
        (ElicitResult(action="accept", content={}), "name"),
        (ListRootsResult(roots=[]), "action"),
        ({"action": "accept"}, "dict"),
        (ElicitResult(action="accept", content={"name": "\ud800"}), "surrogate"),
    ],
    ids=["wrong type", "missing", "another kind", "dict", "half a character"],
)
async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(
    server: ScriptedServer, make_journal: Callable[[], Journal], answer: Any, says: str
) -> None:
    async with clients(server, make_journal, LATER, {}) as (driver, other):
        handle = await driver.start_tool("sign")
        question = await first_question(other)
        with pytest.raises(InvalidAnswerError, match=says):
            await question.answer(answer)
        await question.accept({"name": "Ada"})
        assert text(await handle.result()) == "Ada"


async def test_a_question_that_nobody_asks_any_more_takes_no_answer(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, LATER, {}) as (driver, other):
        handle = await driver.start_tool("sign")
        question = await first_question(other)
        await handle.cancel()
        with pytest.raises(QuestionWithdrawnError):
            await question.accept({"name": "Ada"})
        with pytest.raises(TaskCancelledError):
            await handle.result()
        with pytest.raises(QuestionWithdrawnError):
            await question.accept({"name": "Ada"})


async def test_a_question_of_another_principal_is_neither_seen_nor_answered(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, LATER, {"principal": "bob"}) as (driver, other):
        handle = await driver.start_tool("sign")
        question = await first_question(driver)
        assert await other.questions() == []
        with pytest.raises(QuestionWithdrawnError):
            await other.answer(question.question_id, BOB)
        await question.accept({"name": "Ada"})
        assert text(await handle.result()) == "Ada"


async def test_a_question_is_answered_by_a_handle_of_its_own_call_only(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, LATER) as (client,):
        one, other = await client.start_tool("sign"), await client.start_tool("sign")
        question = await first_question(one)
        with pytest.raises(ValueError, match="another call"):
            await other.answer(question.question_id, ADA)
        await one.answer(question.question_id, ADA)
        assert text(await one.result()) == "Ada"
        await other.cancel()


# ── later ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_callback_may_leave_one_question_and_is_not_asked_again_until_it_is_resumed(
    server: ScriptedServer, make_journal: Callable[[], Journal], caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str | None] = []

    async def leave(context: Any, params: Any) -> None:
        asked.append(context.question.question_id)

    caplog.set_level(logging.INFO, "mcp_tasks_client")
    async with clients(server, make_journal, {"elicitation": leave}) as (client,):
        handle = await client.start_tool("sign")
        await first_question(client)
        await anyio.sleep(0.2)
        assert len(asked) == 1
        assert [getattr(line, "mcp_event", "") for line in caplog.records].count("left") == 1
        assert not handle.done
    async with clients(server, make_journal, {"elicitation": leave}) as (client,):
        (handle,) = await client.resume()
        await first_question(client)
        while len(asked) < 2:
            await anyio.sleep(0.01)
        await client.answer(asked[1] or "", ADA)
        assert text(await handle.result()) == "Ada"
    assert asked[0] == asked[1]


async def test_whoever_stops_waiting_is_told_that_an_answer_is_waited_for(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, LATER) as (driver,):
        handle = await driver.start_tool("sign")
        await first_question(driver)
        with pytest.raises(WaitTimeoutError, match=r"for an answer: await error\.handle\.questions\(\)"):
            await handle.result(timeout=0.05)
    with pytest.raises(TasksClientError, match="The client is closed"):
        await handle.questions()


def test_a_word_that_is_not_later_is_refused() -> None:
    with pytest.raises(ValueError, match='"later"'):
        TasksClient("http://127.0.0.1:1/mcp", journal=MemoryJournal(), elicitation="never")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match='elicitation must be a function, "later" or None, not bool'):
        TasksClient("http://127.0.0.1:1/mcp", journal=MemoryJournal(), elicitation=True)  # type: ignore[arg-type]


# ── cancelled from outside ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tool", ["sign", "ask_first", "sign_slowly"])
async def test_a_call_that_another_client_drives_is_cancelled_through_the_journal(
    server: ScriptedServer, make_journal: Callable[[], Journal], tool: str
) -> None:
    async with (
        clients(server, make_journal, LATER, {}) as (driver, other),
        anyio.create_task_group() as tasks,
    ):
        ended: list[BaseException] = []

        async def call() -> None:
            try:
                await driver.call_tool(tool, idempotency_key=KEY)
            except TaskCancelledError as error:
                ended.append(error)

        tasks.start_soon(call)
        question = await first_question(other)
        if tool == "sign_slowly":
            await question.accept({"name": "Ada"})
        (record,) = await other.records()
        handle = await other.attach(
            {
                "endpoint": "scripted",
                "principal": "",
                "tool": tool,
                "task_id": record.task_id,
                "record_id": record.record_id,
            }
        )
        await handle.cancel()
        while not ended:
            await anyio.sleep(0.01)


async def test_a_call_that_is_to_be_cancelled_asks_nothing_any_more(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    async with clients(server, make_journal, {}) as (client,), Inbox(make_journal()) as inbox:
        with pytest.raises(InputUnansweredError) as caught:
            await client.call_tool("sign")
        (record,) = await inbox.records()
        await inbox.cancel(record)
        assert await inbox.questions() == []
        with pytest.raises(QuestionWithdrawnError):
            await caught.value.questions[0].accept({"name": "Ada"})
        assert isinstance(caught.value.handle, TaskHandle)
        with pytest.raises(TaskCancelledError):
            await caught.value.handle.result()


@pytest.mark.parametrize("parked", [False, True])
async def test_a_resent_call_that_asks_and_is_cancelled_from_outside_stays_of_unknown_outcome(
    server: ScriptedServer, make_journal: Callable[[], Journal], parked: bool
) -> None:
    server.misbehave("tools/call", None, LostReply())  # the round that brings the first answer
    both = clients(server, make_journal, LATER, {} if parked else LATER)
    async with both as (first, second), Inbox(make_journal()) as inbox:
        ended: list[TasksClientError] = []

        async def call_in(client: TasksClient, on_unknown: Any = "raise") -> None:
            try:
                await client.call_tool("ask_first", idempotency_key=KEY, on_unknown=on_unknown)
            except TasksClientError as error:
                ended.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call_in, first)
            await (await first_question(inbox)).accept({"name": "Ada"})
        assert isinstance(ended.pop(), OutcomeUnknownError)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call_in, second, "resend")
            await first_question(inbox)
            while parked and not ended:
                await anyio.sleep(0.01)
            (record,) = await inbox.records()
            await inbox.cancel(record)
        if parked:
            assert isinstance(ended.pop(), InputUnansweredError)
            await call_in(second, "resend")
        assert isinstance(ended.pop(), OutcomeUnknownError)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("point", ["commit: instruct", "commit: AnswerReady", "send: tasks/update"])
async def test_a_client_that_is_killed_around_an_answer_loses_it_not(
    server: ScriptedServer, make_journal: Callable[[], Journal], point: str, moment: Any
) -> None:
    plan = FaultPlan()
    plan.at(point, moment, kill)
    asked: list[int] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(1)
        return ADA if len(asked) == 1 else BOB

    with pytest.raises(BaseException):  # noqa: B017, PT011  # a group around KilledError
        async with scripted_client(
            server.session(), journal=make_journal(), elicitation=answer, observer=plan
        ) as client:
            await client.call_tool("sign")
    assert plan.killed
    before_any_commit = (point, moment) == ("commit: instruct", "before")
    async with clients(server, make_journal, {"elicitation": answer}) as (client,):
        (handle,) = await client.resume()
        assert text(await handle.result()) == ("Bob" if before_any_commit else "Ada")


async def test_a_question_that_is_asked_anew_by_a_call_that_is_sent_again_takes_a_new_answer(
    server: ScriptedServer, make_journal: Callable[[], Journal]
) -> None:
    server.misbehave("tools/call", None, LostReply())  # the round that brings the first answer
    async with clients(server, make_journal, LATER, LATER) as (client, other):
        got: list[str] = []

        async def call() -> None:
            with pytest.raises(OutcomeUnknownError):
                await client.call_tool("ask_first", idempotency_key=KEY)
            again = await client.call_tool("ask_first", idempotency_key=KEY, on_unknown="resend")
            got.append(text(again))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            first = await first_question(other)
            await first.answer(ADA)
            while (second := await first_question(other)).question_id == first.question_id:
                await anyio.sleep(0.01)
            with pytest.raises(QuestionWithdrawnError):
                await first.answer(BOB)  # on a page from before
            await second.answer(BOB)
        assert got == ["Bob"]


# ── what it costs ─────────────────────────────────────────────────────────────────────────────


def used(journal: ProbedJournal) -> int:
    """How often something was read or written of calls."""
    return sum(journal.counts[operation] for operation in ("save", "by_id", "instruct", "instructions"))


async def test_a_call_without_questions_costs_no_commit_for_them(server: ScriptedServer) -> None:
    server.tool("plain", [work(0.05), complete(text_result("done"))], poll_interval_ms=20)
    plan, journal = FaultPlan(), ProbedJournal()
    async with clients(server, lambda: journal, {"observer": plan, **LATER}) as (client,):
        assert text(await client.call_tool("plain", idempotency_key=KEY)) == "done"
        commits = [point for moment, point in plan.passed if moment == "after" and point.startswith("commit")]
        assert sorted(commits) == sorted(
            ["commit: enrol", "commit: prune", "commit: claim", "commit: TaskCreated", "commit: Observed"]
        )
        assert used(journal) == 2, "what is created, and its end"


async def test_a_call_whose_question_waits_costs_a_poll_and_no_more(server: ScriptedServer) -> None:
    plan, journal = FaultPlan(), ProbedJournal()
    async with clients(server, lambda: journal, {"observer": plan, **LATER}) as (client,):
        handle = await client.start_tool("sign")
        question = await first_question(handle)
        for _ in range(2):  # whatever follows from its having been asked
            await handle.refresh()
        passed, before = len(plan.passed), used(journal)
        for _ in range(5):
            await handle.refresh()
        assert {point for _, point in plan.passed[passed:]} == {"send: tasks/get"}
        assert used(journal) == before
        await question.answer(ADA)
        assert text(await handle.result()) == "Ada"


async def test_what_the_session_knows_of_a_task_after_an_answer_is_journaled_with_it() -> None:
    """Another client that takes the call over right then takes no question for the answered one."""
    world = World(gets={TASK: [input_required(TASK, {"name": ASK}), DONE]})
    sent = world.server.update

    async def update(ref: TaskRef, answers: Mapping[str, JSONObject]) -> str:
        await sent(ref, answers)
        return "answered"

    world.server.update = update  # type: ignore[method-assign]
    async with world.client(elicitation=Asked()) as client:
        await world.call(client)
    assert [one.session_data for one in world.server.log("tasks/get")] == [None, "answered"]
