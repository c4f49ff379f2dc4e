"""Tasks that a 2025-11-25 server has the client run: what it asks, what becomes of it, what it is told."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest

from mcp_tasks_client import InputContext
from mcp_tasks_client.errors import ConnectionLostError
from mcp_tasks_client.policy import ReceivePolicy
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import RpcError
from mcp_tasks_client.questions.callbacks import Inputs, NoAnswerError
from mcp_tasks_client.sessions.v2025.receiver import Receiver
from mcp_tasks_client.testing.clock import ManualClock
from tests._requirements import requirement

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 30.0
RELATED: Final = "io.modelcontextprotocol/related-task"
BOTH: Final[JSONObject] = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
ANSWER: Final = {"action": "accept", "content": {"name": "Ada"}}
ENDED: Final = "notifications/tasks/status"


class InputsOnCue(Inputs):
    """Is asked, and answers when told to. A stubborn person cannot be stopped."""

    def __init__(
        self,
        answer: JSONObject | Exception = ANSWER,
        capabilities: JSONObject = BOTH,
        *,
        stubborn: bool = False,
    ) -> None:
        self._capabilities = capabilities
        self._answer = answer
        self._stubborn = stubborn
        self.asked: list[JSONObject] = []
        self.stopped = 0
        self.ready = anyio.Event()

    @property
    def capabilities(self) -> JSONObject:
        return self._capabilities

    async def answer(self, context: InputContext, request: JSONObject) -> JSONObject:
        self.asked.append(request)
        try:
            with anyio.fail_after(LIMIT_S if self._stubborn else None, shield=self._stubborn):
                await self.ready.wait()
        except anyio.get_cancelled_exc_class():
            self.stopped += 1
            raise
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class Desk:
    """A receiver, and a server's way to it."""

    def __init__(self, person: InputsOnCue, policy: ReceivePolicy) -> None:
        self.clock = ManualClock()
        self.receiver = Receiver(person, policy, self.clock)
        self.notified: list[tuple[str, str, JSONObject]] = []

    async def notify(self, session_id: str, method: str, params: JSONObject) -> None:
        self.notified.append((session_id, method, params))
        raise ConnectionLostError("nobody relies on a notification")

    async def ask(self, method: str, session: str = "s", **params: Any) -> Any:
        return await self.receiver.handle(method, params, session)

    async def create(self, session: str = "s", request_id: Any = None, **params: Any) -> JSONObject:
        """Has the client run an elicitation. Returns the task."""
        params = {"message": "Name?", "requestedSchema": {}, "task": {}, **params}
        reply = await self.receiver.handle("elicitation/create", params, session, request_id)
        assert isinstance(reply, dict), reply
        await anyio.wait_all_tasks_blocked()
        task = reply["task"]
        assert isinstance(task, dict)
        return task

    async def about(self, verb: str, task: JSONObject, session: str = "s") -> Any:
        return await self.ask(f"tasks/{verb}", session, taskId=task["taskId"])


@asynccontextmanager
async def desk(person: InputsOnCue, policy: ReceivePolicy | None = None) -> AsyncIterator[Desk]:
    found = Desk(person, policy or ReceivePolicy())
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found.receiver.run, found.notify)
            await anyio.wait_all_tasks_blocked()
            yield found
            tasks.cancel_scope.cancel()


class Waiting:
    """A request that waits for its reply."""

    reply: Any = "none yet"

    def __init__(self, tasks: Any, ask: Callable[..., Any], *arguments: Any) -> None:
        async def wait() -> None:
            self.reply = await ask(*arguments)

        tasks.start_soon(wait)


# ── what is declared and what is taken ────────────────────────────────────────────────────────


@requirement("2025:receive-capability")
@pytest.mark.parametrize(
    ("capabilities", "requests"),
    [
        (BOTH, {"elicitation": {"create": {}}, "sampling": {"createMessage": {}}}),
        ({"sampling": {}}, {"sampling": {"createMessage": {}}}),
    ],
)
def test_tasks_are_declared_for_what_the_host_can_be_asked(capabilities: Any, requests: Any) -> None:
    receiver = Receiver(InputsOnCue(capabilities=capabilities), ReceivePolicy(), ManualClock())
    assert receiver.capabilities == {"tasks": {"list": {}, "cancel": {}, "requests": requests}}


@requirement("2025:receive-capability")
@pytest.mark.parametrize("capabilities", [{}, {"roots": {}}])
def test_nothing_is_declared_or_taken_where_the_host_cannot_be_asked(capabilities: Any) -> None:
    receiver = Receiver(InputsOnCue(capabilities=capabilities), ReceivePolicy(), ManualClock())
    assert receiver.capabilities == {}
    assert not receiver.concerns("tasks/list", {})


@requirement("2025:receive-undeclared")
@pytest.mark.parametrize(
    ("method", "params", "capabilities", "concerned"),
    [
        ("elicitation/create", {"task": {}}, BOTH, True),
        ("elicitation/create", {"task": None}, BOTH, False),
        ("elicitation/create", {}, BOTH, False),
        ("elicitation/create", {"task": {}}, {"sampling": {}}, False),
        ("roots/list", {"task": {}}, BOTH, False),
        ("tasks/get", {"taskId": "1"}, BOTH, True),
        ("tasks/list", {}, BOTH, True),
        ("tasks/else", {}, BOTH, False),
        ("ping", {}, BOTH, False),
    ],
)
def test_only_declared_questions_with_a_task_are_taken(
    method: str, params: Any, capabilities: Any, concerned: bool
) -> None:
    receiver = Receiver(InputsOnCue(capabilities=capabilities), ReceivePolicy(), ManualClock())
    assert receiver.concerns(method, params) is concerned


@pytest.mark.parametrize(
    "limits",
    [{"max_working": 0}, {"page_size": -1}, {"max_ttl_ms": math.inf}, {"max_ttl_ms": 5, "default_ttl_ms": 6}],
)
def test_limits_that_make_no_sense_are_refused(limits: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        ReceivePolicy(**limits)


# ── the life of a task ────────────────────────────────────────────────────────────────────────


@requirement("2025:receive-at-once", "2025:receive-result", "2025:receive-lifecycle", "2025:receive-marks")
async def test_a_task_is_created_at_once_and_its_result_is_waited_for() -> None:
    person = InputsOnCue()
    async with desk(person) as server, anyio.create_task_group() as tasks:
        task = await server.create()
        assert task == {
            "taskId": task["taskId"],
            "status": "working",
            "createdAt": "2027-01-15T08:00:00.000Z",
            "lastUpdatedAt": "2027-01-15T08:00:00.000Z",
            "ttl": 3_600_000,
            "pollInterval": 1000,
        }
        assert person.asked == [
            {"method": "elicitation/create", "params": {"message": "Name?", "requestedSchema": {}}}
        ]
        waiting = Waiting(tasks, server.about, "result", task)
        await server.clock.advance(1.0)
        assert await server.about("get", task) == task
        assert waiting.reply == "none yet"
        person.ready.set()
        await anyio.wait_all_tasks_blocked()
        assert waiting.reply == {**ANSWER, "_meta": {RELATED: {"taskId": task["taskId"]}}}
        ended = {**task, "status": "completed", "lastUpdatedAt": "2027-01-15T08:00:01.000Z"}
        assert await server.about("get", task) == ended
        assert await server.about("result", task) == waiting.reply


@requirement("2025:receive-notifications", "2025:receive-marks")
async def test_the_server_is_notified_of_the_end_once() -> None:
    person = InputsOnCue()
    person.ready.set()
    async with desk(person) as server:
        task = await server.create()
        assert server.notified == [("s", ENDED, await server.about("get", task))]
        assert server.notified[0][2]["status"] == "completed"


@requirement("2025:receive-result", "2025:receive-words")
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            NoAnswerError("no", RpcError(-1, "User rejected", {"why": 1})),
            RpcError(-1, "User rejected", {"why": 1}),
        ),
        (NoAnswerError("it is late"), RpcError(-32603, "The client has no answer: it is late", None)),
        (RuntimeError("secret"), RpcError(-32603, "The client has no answer", None)),
    ],
)
async def test_a_question_without_an_answer_is_a_failed_task_with_the_error_of_a_plain_question(
    answer: Exception, error: RpcError
) -> None:
    person = InputsOnCue(answer)
    person.ready.set()
    async with desk(person) as server:
        task = await server.create()
        assert await server.about("result", task) == error
        failed = await server.about("get", task)
        assert (failed["status"], failed["statusMessage"]) == ("failed", error.message)


@requirement("2025:receive-task-id")
async def test_task_ids_are_unguessable_and_the_params_name_the_task() -> None:
    async with desk(InputsOnCue()) as server:
        tasks = [await server.create() for _ in range(8)]
        ids = {task["taskId"] for task in tasks}
        assert min(map(len, ids)) * 6 >= 128, "bits: one of 64 characters holds six"
        assert len({task_id[:4] for task_id in ids}) == 8
        other = {RELATED: {"taskId": tasks[1]["taskId"]}}
        found = await server.ask("tasks/get", taskId=tasks[0]["taskId"], _meta=other)
        assert found == tasks[0]


async def test_a_question_that_comes_twice_under_one_id_is_one_task_while_it_goes_on() -> None:
    person = InputsOnCue()
    async with desk(person) as server:
        first = await server.create(request_id=0)
        assert await server.create(request_id=0) == first
        assert await server.create(request_id="0") != first
        assert await server.create(request_id=0, message="Other?") != first
        assert len(person.asked) == 3
        person.ready.set()
        await anyio.wait_all_tasks_blocked()
        assert (await server.create(request_id=0))["taskId"] != first["taskId"]


# ── cancellation ──────────────────────────────────────────────────────────────────────────────


@requirement("2025:receive-cancel")
@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_cancelled_task_stays_cancelled_whatever_the_host_still_answers(stubborn: bool) -> None:
    person = InputsOnCue(stubborn=stubborn)
    async with desk(person) as server, anyio.create_task_group() as tasks:
        task = await server.create()
        waiting = Waiting(tasks, server.about, "result", task)
        await anyio.wait_all_tasks_blocked()
        said = await server.about("cancel", task)
        assert (said["status"], said["statusMessage"]) == ("cancelled", "The task was cancelled by request.")
        person.ready.set()
        await anyio.wait_all_tasks_blocked()
        assert person.stopped == (0 if stubborn else 1)
        assert waiting.reply == RpcError(-32603, "The task was cancelled by request.", None)
        assert await server.about("get", task) == said
        assert server.notified == []


@requirement("2025:receive-cancel", "2025:receive-errors")
async def test_a_task_that_has_ended_cannot_be_cancelled() -> None:
    person = InputsOnCue()
    person.ready.set()
    async with desk(person) as server:
        task = await server.create()
        refused = await server.about("cancel", task)
        assert refused.code == -32602
        assert "already in terminal status 'completed'" in refused.message
        assert (await server.about("get", task))["status"] == "completed"


async def test_what_a_cancelled_task_of_the_server_needed_is_stopped_and_nobody_is_asked() -> None:
    person, mark = InputsOnCue(), {RELATED: {"taskId": "theirs"}}
    async with desk(person) as server, anyio.create_task_group() as tasks:
        needed = await server.create(_meta=mark)
        other = await server.create(_meta={RELATED: {"taskId": "another"}})
        waiting = Waiting(tasks, server.about, "result", needed)
        await anyio.wait_all_tasks_blocked()
        server.receiver.abandon("theirs")
        await anyio.wait_all_tasks_blocked()
        assert person.stopped == 1
        assert isinstance(waiting.reply, RpcError)
        assert isinstance(await server.ask("elicitation/create", task={}, _meta=mark), RpcError)
        assert (await server.about("get", other))["status"] == "working"
        is_abandoned = server.receiver.is_abandoned
        assert is_abandoned({"taskId": needed["taskId"]})
        assert is_abandoned({"task": {}, "_meta": mark})
        assert not is_abandoned({"taskId": other["taskId"]})
        assert not is_abandoned({"taskId": [], "_meta": None})
        assert len(person.asked) == 2


@requirement("2025:receive-marks")
async def test_the_reply_to_a_question_of_a_servers_task_is_marked_with_that_task() -> None:
    async with desk(InputsOnCue()) as server:
        mark = {RELATED: {"taskId": "theirs"}}
        reply = await server.ask("elicitation/create", task={}, _meta=mark)
        assert reply["_meta"] == mark


# ── time ──────────────────────────────────────────────────────────────────────────────────────


@requirement("2025:receive-ttl", "2025:receive-limits")
@pytest.mark.parametrize(
    ("wish", "ttl_ms"),
    [({}, 2000), ({"ttl": 0}, 2000), ({"ttl": 0.5}, 1), ({"ttl": 9000}, 5000), ({"ttl": None}, 5000)],
)
async def test_a_time_to_live_has_a_default_and_a_limit(wish: Any, ttl_ms: int) -> None:
    async with desk(InputsOnCue(), ReceivePolicy(default_ttl_ms=2000, max_ttl_ms=5000)) as server:
        task = await server.create(task=wish)
        assert (task["ttl"], type(task["ttl"])) == (ttl_ms, int)


@requirement("2025:receive-ttl", "2025:receive-errors", "2025:receive-words")
async def test_a_time_to_live_that_is_over_ends_the_asking_and_the_waiting_and_forgets_the_task() -> None:
    person = InputsOnCue()
    async with desk(person) as server, anyio.create_task_group() as tasks:
        task = await server.create(task={"ttl": 60_000})
        waiting = Waiting(tasks, server.about, "result", task)
        await server.clock.advance(59.0)
        assert (person.stopped, waiting.reply) == (0, "none yet")
        await server.clock.advance(2.0)
        assert person.stopped == 1
        assert waiting.reply == RpcError(-32602, "Failed to retrieve task: Task has expired", None)
        not_found = RpcError(-32602, "Failed to retrieve task: Task not found", None)
        assert await server.about("get", task) == not_found
        assert await server.ask("tasks/list") == {"tasks": []}


@requirement("2025:receive-ttl")
async def test_a_result_is_kept_for_the_time_to_live_and_the_wall_clock_does_not_matter() -> None:
    person = InputsOnCue()
    person.ready.set()
    async with desk(person) as server:
        task = await server.create(task={"ttl": 60_000})
        server.clock.jump(3600.0)
        await server.clock.advance(59.0)
        assert (await server.about("result", task))["action"] == "accept"
        await server.clock.advance(2.0)
        assert (await server.about("result", task)).code == -32602


# ── sessions, lists and limits ────────────────────────────────────────────────────────────────


@requirement("2025:receive-isolation")
async def test_a_session_never_sees_the_tasks_of_another() -> None:
    async with desk(InputsOnCue()) as server:
        task = await server.create("mine")
        for verb in ("get", "result", "cancel"):
            refused = await server.about(verb, task, "other")
            assert refused == RpcError(-32602, "Failed to retrieve task: Task not found", None)
        assert await server.ask("tasks/list", "other") == {"tasks": []}
        assert (await server.about("get", task, "mine"))["status"] == "working"


async def test_the_tasks_of_a_session_end_with_it() -> None:
    person = InputsOnCue()
    async with desk(person) as server:
        task, other = await server.create("ended"), await server.create("goes on")
        server.receiver.forget_session("ended")
        await anyio.wait_all_tasks_blocked()
        assert person.stopped == 1
        assert (await server.about("get", task, "ended")).code == -32602
        assert (await server.about("get", other, "goes on"))["status"] == "working"


async def test_nobody_is_asked_any_more_once_the_receiver_has_stopped() -> None:
    person = InputsOnCue()
    async with desk(person) as server:
        task = await server.create()
    assert person.stopped == 1
    assert (await server.about("get", task)).code == -32602
    refused = await server.ask("elicitation/create", task={})
    assert refused.code == -32603


@requirement("2025:receive-list")
async def test_a_list_comes_in_pages_that_show_each_task_that_stays_once() -> None:
    async with desk(InputsOnCue(), ReceivePolicy(page_size=2)) as server:
        first, *rest = [await server.create() for _ in range(4)]
        page = await server.ask("tasks/list")
        assert page["tasks"] == [first, rest[0]]
        late = await server.create()
        server.receiver.abandon("theirs")
        page = await server.ask("tasks/list", cursor=page["nextCursor"])
        assert page["tasks"] == rest[1:]
        page = await server.ask("tasks/list", cursor=page["nextCursor"])
        assert page == {"tasks": [late]}


@requirement("2025:receive-errors")
async def test_a_cursor_that_was_never_given_out_is_refused() -> None:
    async with desk(InputsOnCue(), ReceivePolicy(page_size=1)) as server:
        await server.create()
        cursors: list[Any] = ["", "next", "0", "2", "01", "-1", "1\n", "²", 1, 1.0, {}, "9" * 100_000]
        for cursor in cursors:
            assert (await server.ask("tasks/list", cursor=cursor)).code == -32602, cursor


@requirement("2025:receive-errors", "2025:receive-words")
@pytest.mark.parametrize(
    ("method", "requests"),
    [
        ("tasks/get", [{}, {"taskId": 5}, {"taskId": ""}, {"taskId": ["a"]}]),
        (
            "elicitation/create",
            [
                {"task": wish}
                for wish in ["yes", [], True, {"ttl": -1}, {"ttl": "60"}, {"ttl": True}, {"ttl": math.nan}]
            ],
        ),
    ],
)
async def test_a_malformed_request_is_refused(method: str, requests: list[JSONObject]) -> None:
    async with desk(InputsOnCue()) as server:
        for params in requests:
            refused = await server.ask(method, **params)
            assert refused.code == -32602, params
            assert "Invalid params" in refused.message


@requirement("2025:receive-limits")
async def test_a_session_has_so_many_tasks_and_another_has_as_many() -> None:
    person = InputsOnCue()
    async with desk(person, ReceivePolicy(max_working=1, max_kept=2)) as server:
        await server.create()
        refused = await server.ask("elicitation/create", task={})
        assert refused.code == -32600
        assert "being worked on" in refused.message
        await server.create("other")
        person.ready.set()
        await anyio.wait_all_tasks_blocked()
        await server.create()
        refused = await server.ask("elicitation/create", task={})
        assert "are kept" in refused.message


@requirement("2025:receive-pace")
async def test_a_server_that_asks_too_often_is_told_so_and_may_ask_again_later() -> None:
    async with desk(InputsOnCue(), ReceivePolicy(max_requests_per_s=1)) as server:
        replies = [await server.ask("tasks/list") for _ in range(11)]
        assert replies[9] == {"tasks": []}
        assert (replies[10].code, "Too many requests" in replies[10].message) == (-32603, True)
        assert await server.ask("tasks/list", "other") == {"tasks": []}
        await server.clock.advance(1.0)
        assert await server.ask("tasks/list") == {"tasks": []}


async def test_requests_that_are_being_answered_are_bounded() -> None:
    person = InputsOnCue()
    async with desk(person, ReceivePolicy(max_requests=2)) as server, anyio.create_task_group() as tasks:
        task = await server.create()
        for _ in range(2):
            Waiting(tasks, server.about, "result", task)
        await anyio.wait_all_tasks_blocked()
        assert (await server.about("get", task)).code == -32603
        person.ready.set()
        await anyio.wait_all_tasks_blocked()
        assert (await server.about("get", task))["status"] == "completed"


@requirement("2025:receive-audit")
async def test_the_life_of_a_task_is_logged_without_its_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mcp_tasks_client")
    person = InputsOnCue()
    person.ready.set()
    async with desk(person) as server:
        task = await server.create()
        await server.about("result", task)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3, "creation, completion, retrieval"
    assert task["taskId"] not in caplog.text
    assert task["taskId"][:8] in caplog.text
