"""Questions of blocking clients and inboxes block, wherever they come from, and help() says so."""

from __future__ import annotations

import functools
import inspect
import pickle
import pydoc
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from mcp_types import ElicitResult, ListRootsResult

from mcp_tasks_client import (
    AlreadyAnsweredError,
    BlockingInbox,
    BlockingQuestion,
    BlockingTaskHandle,
    BlockingTasksClient,
    InputUnansweredError,
    MemoryJournal,
    QuestionWithdrawnError,
    TasksClientError,
)
from mcp_tasks_client.sessions.base import TaskRef
from mcp_tasks_client.testing import completed, input_required, text_result, working
from tests._results import text
from tests.scripted_session import ScriptedSession

TASK: Final = "task-0123456789abcdef"
DONE: Final = completed(TASK, text_result("done"))
ASK: Final = {
    "method": "elicitation/create",
    "params": {"message": "Go on?", "requestedSchema": {"type": "object"}},
}
SOON: Final = 30.0


class Asking(ScriptedSession):
    """A task that asks until it has an answer, and is done then."""

    def __init__(self, request: dict[str, Any] = ASK) -> None:
        asks = input_required(TASK, {"k": request}, poll_interval_ms=5)
        super().__init__(calls=[working(TASK, poll_interval_ms=5)], gets={TASK: [asks]})
        self.answers: list[Any] = []

    async def update(self, ref: TaskRef, answers: Mapping[str, Any]) -> str | None:
        self.answers += answers.values()
        self.gets[TASK] = [DONE]
        return await super().update(ref, answers)


def blocking(server: ScriptedSession, **options: Any) -> BlockingTasksClient:
    client: BlockingTasksClient = BlockingTasksClient(server, **{"journal": MemoryJournal(), **options})
    return client


def waited_for(questions: Callable[[], list[BlockingQuestion]]) -> BlockingQuestion:
    """The question that comes."""
    ends_at = time.monotonic() + SOON
    while not (found := questions()):
        assert time.monotonic() < ends_at
        time.sleep(0.005)
    return found[0]


@pytest.mark.parametrize("way", ["client", "handle", "inbox", "inbox, by its ID", "error", "callback, kept"])
def test_a_question_blocks_until_its_answer_is_committed(way: str) -> None:
    server, journal, kept = Asking(), MemoryJournal(), list[Any]()

    def ask(context: Any, params: Any) -> None:
        kept.append(context.question)

    elicitation = {"error": None, "callback, kept": ask}.get(way, "later")
    with (
        blocking(server, journal=journal, elicitation=elicitation) as client,
        BlockingInbox(journal) as inbox,
    ):
        handle = client.start_tool("tool", label="lunch")
        question: Any
        if way == "error":
            with pytest.raises(InputUnansweredError) as caught:
                handle.result(SOON)
            (question,) = caught.value.questions
        elif way == "callback, kept":
            question = waited_for(lambda: kept)
        else:
            questions = {"client": client.questions, "handle": handle.questions}.get(way, inbox.questions)
            question = waited_for(questions)
        if way == "inbox, by its ID":
            question = inbox.question(question.question_id)
        assert isinstance(question, BlockingQuestion)
        assert (question.tool, question.label, question.method) == ("tool", "lunch", "elicitation/create")
        assert question.accept({}) is None
        assert text(handle.result(SOON)) == "done"
        assert [answer["action"] for answer in server.answers] == ["accept"]
        with pytest.raises((QuestionWithdrawnError, AlreadyAnsweredError)):
            question.decline()
        assert inbox.question(question.question_id) is None
    with pytest.raises(TasksClientError, match="not open"):
        question.cancel()


def test_a_callback_may_answer_by_its_question() -> None:
    server = Asking()

    def ask(context: Any, params: Any) -> None:
        context.question.accept({})

    with blocking(server, elicitation=ask) as client:
        assert text(client.call_tool("tool", timeout=SOON)) == "done"
    assert [answer["action"] for answer in server.answers] == ["accept"]


def test_a_callback_that_is_a_coroutine_function_has_a_question_to_be_awaited() -> None:
    async def ask(context: Any, params: Any) -> None:
        await context.question.accept({})

    with blocking(Asking(), elicitation=ask) as client:
        assert text(client.call_tool("tool", timeout=SOON)) == "done"


@pytest.mark.parametrize("takes_params", [False, True])
def test_a_callback_is_called_with_what_it_takes(takes_params: bool) -> None:
    def with_params(context: Any, params: Any) -> ListRootsResult:
        return ListRootsResult(roots=[])

    def without(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[])

    callback = functools.partial(with_params if takes_params else without)
    server = Asking({"method": "roots/list"})
    with blocking(server, roots=callback) as client:
        assert text(client.call_tool("tool", timeout=SOON)) == "done"
    assert server.answers == [{"roots": []}]


def test_a_question_that_was_pickled_has_no_client_any_more() -> None:
    with blocking(Asking(), elicitation="later") as client:
        handle = client.start_tool("tool")
        question = waited_for(client.questions)
        copied = pickle.loads(pickle.dumps(question))
        assert copied == question
        assert repr(copied) == repr(question)
        assert repr(copied).startswith("BlockingQuestion(question_id=")
        with pytest.raises(TasksClientError, match=r"client\.answer\(question\.question_id, answer\)"):
            copied.accept({})
        client.answer(copied.question_id, ElicitResult(action="decline"))
        assert text(handle.result(SOON)) == "done"


RETURNED: Final = {
    BlockingTasksClient.start_tool: "BlockingTaskHandle",
    BlockingTasksClient.attach: "BlockingTaskHandle",
    BlockingTasksClient.resume: "list[mcp_tasks_client.blocking.BlockingTaskHandle]",
    BlockingTasksClient.adopt: "Iterator[mcp_tasks_client.blocking.BlockingTaskHandle]",
    BlockingTasksClient.questions: "list[mcp_tasks_client.blocking.BlockingQuestion]",
    BlockingTaskHandle.questions: "list[mcp_tasks_client.blocking.BlockingQuestion]",
    BlockingTaskHandle.outcome: "AbstractContextManager[mcp_types",
    BlockingInbox.questions: "list[mcp_tasks_client.blocking.BlockingQuestion]",
    BlockingInbox.question: "BlockingQuestion | None",
    BlockingInbox.asked: "Iterator[mcp_tasks_client.blocking.BlockingQuestion]",
    BlockingInbox.ended: "Iterator[mcp_tasks_client.machine.record.TaskRecord]",
}


@pytest.mark.parametrize("method", RETURNED, ids=lambda method: method.__qualname__)
def test_help_names_the_types_that_block(method: Callable[..., Any]) -> None:
    head = pydoc.plain(pydoc.render_doc(method)).split("\n\n")[1]
    assert RETURNED[method] in head
    for returned in (inspect.signature(method).return_annotation, method.__annotations__["return"]):
        assert "Async" not in str(returned)
        assert not re.search(r"\b(TaskHandle|Question)\b", str(returned))
