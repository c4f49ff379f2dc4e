"""The client for code without an event loop: the same behaviour, one thread, nothing left behind.

What the client does is shown in ``test_client.py``; here is what waiting for it from a thread adds.
The clock is the real one, so the script's intervals are a few milliseconds.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import mcp
import pytest
from mcp_types import CallToolResult, ElicitResult

from mcp_tasks_client import (
    BlockingInbox,
    BlockingQuestion,
    BlockingTaskHandle,
    BlockingTasksClient,
    Inbox,
    InputUnansweredError,
    JournalError,
    MemoryJournal,
    PollPolicy,
    Question,
    TaskCancelledError,
    TaskFailedError,
    TaskHandle,
    TaskRecord,
    TasksClient,
    TasksClientError,
    ToolError,
    WaitTimeoutError,
    call_label,
)
from mcp_tasks_client.protocol.replies import CallReply, Created, read_call_reply
from mcp_tasks_client.protocol.task import Task
from mcp_tasks_client.sessions.base import BeforeSend, Snapshot, TaskRef, ToolCall
from mcp_tasks_client.testing import (
    cancelled,
    completed,
    failed,
    input_required,
    text_result,
    working,
)
from tests._results import text
from tests.kit.probed_journal import ProbedJournal

from ..scripted_session import STALL, ScriptedSession

TASK = "task-0123456789abcdef"
AT_WORK = working(TASK, poll_interval_ms=5)
DONE = completed(TASK, text_result("done"))
ASK = {
    "method": "elicitation/create",
    "params": {"message": "Go on?", "requestedSchema": {"type": "object"}},
}
YES = ElicitResult(action="accept")

# Long enough for any machine; a test that gets here has failed.
SOON = 30.0


class CancellableSession(ScriptedSession):
    """A scripted server; unless told otherwise, its task is at work forever."""

    def __init__(self, *gets: Any, **script: Any) -> None:
        script = {"calls": [AT_WORK], "gets": {TASK: list(gets) or [AT_WORK]}, **script}
        super().__init__(**script)
        self.told_to_cancel = threading.Event()

    async def cancel(self, ref: TaskRef) -> None:
        await super().cancel(ref)
        self.gets[ref.task_id] = [cancelled(ref.task_id)]
        self.told_to_cancel.set()

    def finish(self) -> None:
        """From here on the task is done."""
        self.gets[TASK] = [DONE]


def blocking(server: ScriptedSession, **options: Any) -> BlockingTasksClient:
    client: BlockingTasksClient = BlockingTasksClient(server, **{"journal": MemoryJournal(), **options})
    return client


def first(most: int, updates: Iterator[Task]) -> Iterator[Task]:
    """Updates, but no more than there can be: what does not end must fail."""
    return itertools.islice(updates, most)


@contextmanager
def elsewhere(work: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Run something in another thread meanwhile; what is yielded waits for what it returned."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield functools.partial(future.result, SOON)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Law 8, after each of these tests."""
    before = set(threading.enumerate())
    yield
    assert left_over(before) == []


def left_over(before: set[threading.Thread]) -> list[threading.Thread]:
    after = [thread for thread in threading.enumerate() if thread not in before]
    # An event loop tells its idle workers to end and does not wait for them.
    for thread in after:
        thread.join(SOON)
    return [thread for thread in after if thread.is_alive()]


# ── calling ───────────────────────────────────────────────────────────────────────────────────


def test_call_tool_waits_for_the_task_and_returns_its_result() -> None:
    server = CancellableSession(AT_WORK, AT_WORK, DONE)
    with blocking(server) as client:
        result = client.call_tool("tool", {"a": 1}, timeout=SOON, meta={"k": "v"})
    assert text(result) == "done"
    (call,) = [sent.call for sent in server.log("tools/call")]
    assert call is not None
    assert (call.name, dict(call.arguments), call.meta) == ("tool", {"a": 1}, {"k": "v"})
    assert server.closed


def test_call_tool_tells_a_plain_function_of_each_change() -> None:
    seen: list[str] = []
    with blocking(CancellableSession(DONE)) as client:
        client.call_tool("tool", timeout=SOON, on_update=lambda task: seen.append(task.status))
    assert seen == ["working", "completed"]


def test_call_tool_tells_a_plain_function_of_the_progress(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[float, float | None, str | None]] = []
    one, two = (working(TASK, poll_interval_ms=5, status_message=words) for words in ("one", "two"))
    with blocking(CancellableSession(one, two, DONE)) as client:
        client.call_tool("tool", timeout=SOON, progress_callback=lambda *said: told.append(said))
    assert told == [(1, None, "one"), (2, None, "two")]
    assert "raised" not in caplog.text


def test_an_error_comes_out_as_it_is_and_its_handle_can_be_attached() -> None:
    with blocking(CancellableSession(failed(TASK, -32050, "quota", {"left": 0}))) as client:
        with pytest.raises(TaskFailedError) as caught:
            client.call_tool("tool", timeout=SOON)
        assert (caught.value.code, caught.value.data) == (-32050, {"left": 0})
        assert caught.value.handle is not None
        handle = client.attach(caught.value.handle.reference)
        assert isinstance(handle, BlockingTaskHandle)
        with pytest.raises(TaskFailedError):
            handle.result(SOON)


def test_a_call_has_the_label_that_it_is_given_or_that_its_thread_is_in() -> None:
    server = CancellableSession()
    with blocking(server, application="payroll") as client, call_label("of Bob"):
        handle = client.start_tool("tool", label="of Ada", idempotency_key="a")
        assert handle.label == "of Ada"
        assert client.start_tool("tool", idempotency_key="b").label == "of Bob"
        assert {record.application for record in client.records()} == {"payroll"}
        assert client.attach(handle.reference) == handle
        server.finish()


def test_start_tool_returns_at_once_with_a_handle_that_can_be_looked_at() -> None:
    server = CancellableSession()
    with blocking(server) as client:
        handle = client.start_tool("tool")
        assert isinstance(handle, BlockingTaskHandle)
        assert (handle.task_id, handle.tool, handle.done) == (TASK, "tool", False)
        assert handle.task is not None
        assert handle.task.status == "working"
        assert handle.reference["task_id"] == TASK
        record_id = handle.reference["record_id"][:8]
        assert repr(handle) == f"<BlockingTaskHandle {record_id}… tool='tool' task_id='task-01…' working>"
        server.finish()
        assert text(handle.result()) == "done"
        assert text(handle.result()) == "done"
        assert handle.done


def test_result_with_a_timeout_stops_waiting_and_the_task_goes_on() -> None:
    server = CancellableSession()
    with blocking(server) as client:
        handle = client.start_tool("tool")
        with pytest.raises(WaitTimeoutError) as caught:
            handle.result(timeout=0.02)
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value.handle, TaskHandle)
        assert server.log("tasks/cancel") == []
        server.finish()
        assert text(handle.result(timeout=SOON)) == "done"


def test_call_tool_with_a_timeout_stops_waiting_and_the_handle_is_picked_up_again() -> None:
    server = CancellableSession()
    with blocking(server) as client:
        with pytest.raises(WaitTimeoutError) as caught:
            client.call_tool("tool", timeout=0.02)
        assert caught.value.handle is not None
        server.finish()
        assert text(client.attach(caught.value.handle.reference).result(SOON)) == "done"


def test_updates_are_an_ordinary_iterator_that_ends_with_the_task() -> None:
    server = CancellableSession()
    with blocking(server) as client:
        handle = client.start_tool("tool")
        seen: list[str] = []
        for task in first(10, handle.updates()):
            assert isinstance(task, Task)
            seen.append(task.status)
            server.finish()
        assert seen == ["working", "completed"]
        assert handle.done


def test_leaving_the_loop_over_updates_stops_nothing() -> None:
    server = CancellableSession()
    with blocking(server) as client:
        handle = client.start_tool("tool")
        for _ in handle.updates():
            break
        server.finish()
        assert text(handle.result(SOON)) == "done"


def test_updates_of_a_parked_task_raise_what_parked_it() -> None:
    with blocking(CancellableSession(input_required(TASK, {"k": ASK}, poll_interval_ms=5))) as client:
        handle = client.start_tool("tool")
        with pytest.raises(InputUnansweredError, match="elicitation=") as caught:
            list(first(10, handle.updates()))
        assert caught.value.keys == ("k",)


def test_refresh_returns_what_the_next_poll_brings() -> None:
    said = working(TASK, poll_interval_ms=5, status_message="half way")
    with blocking(CancellableSession(said)) as client:
        assert client.start_tool("tool").refresh().status_message == "half way"


def test_cancel_tells_the_server() -> None:
    server = CancellableSession()
    with blocking(server) as client:
        handle = client.start_tool("tool")
        handle.cancel()
        assert len(server.log("tasks/cancel")) == 1
        with pytest.raises(TaskCancelledError):
            handle.result(SOON)


def test_resume_attach_and_records_find_a_task_again_in_another_client() -> None:
    journal = MemoryJournal()
    server = CancellableSession()
    with blocking(server, journal=journal) as client:
        reference = client.start_tool("tool").reference
    server.finish()
    with blocking(server, journal=journal) as client:
        (resumed,) = client.resume()
        assert isinstance(resumed, BlockingTaskHandle)
        assert resumed.task_id == TASK
        assert text(client.attach(reference).result(SOON)) == "done"
        assert text(client.attach(TASK).result(SOON)) == "done"
        assert text(resumed.result(SOON)) == "done"
    with blocking(server, journal=journal) as client:
        assert client.resume() == []
    assert len(server.log("tools/call")) == 1


# ── callbacks ─────────────────────────────────────────────────────────────────────────────────


def test_a_plain_callback_may_block_and_may_use_the_client_itself() -> None:
    server = CancellableSession(input_required(TASK, {"k": ASK}, poll_interval_ms=5))
    known: list[str] = []

    def ask(context: Any, params: Any) -> ElicitResult:
        known.extend(record.status for record in client.records())
        server.finish()
        return YES

    with blocking(server, elicitation=ask) as client:
        assert text(client.call_tool("tool", timeout=SOON)) == "done"
    assert known == ["input_required"]


def test_a_coroutine_callback_runs_in_the_clients_own_loop() -> None:
    server = CancellableSession(input_required(TASK, {"k": ASK}, poll_interval_ms=5), DONE)
    ran_in: list[int] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        await anyio.lowlevel.checkpoint()
        ran_in.append(threading.get_ident())
        return YES

    with blocking(server, elicitation=ask) as client:
        assert text(client.call_tool("tool", timeout=SOON)) == "done"
    assert ran_in != [threading.get_ident()]


def test_waiting_inside_the_clients_own_loop_is_refused_and_not_a_deadlock() -> None:
    async def ask(context: Any, params: Any) -> ElicitResult:
        client.records()
        return YES

    asking = input_required(TASK, {"k": ASK}, poll_interval_ms=5)
    with blocking(CancellableSession(asking), elicitation=ask) as client:
        with pytest.raises(InputUnansweredError) as caught:
            client.call_tool("tool", timeout=SOON)
        assert "event loop thread" in str(caught.value)


# ── opening and closing ───────────────────────────────────────────────────────────────────────

NOT_OPEN = r"The client is not open\. Use: with BlockingTasksClient\(\.\.\.\) as client"

OF_THE_CLIENT = [
    pytest.param(lambda client: client.call_tool("tool"), id="call_tool"),
    pytest.param(lambda client: client.start_tool("tool"), id="start_tool"),
    pytest.param(lambda client: client.attach(TASK), id="attach"),
    pytest.param(lambda client: client.resume(), id="resume"),
    pytest.param(lambda client: client.records(), id="records"),
]


@pytest.mark.parametrize("use", OF_THE_CLIENT)
def test_use_before_opening_says_how_to_open(use: Callable[[BlockingTasksClient], object]) -> None:
    server = CancellableSession()
    with pytest.raises(TasksClientError, match=NOT_OPEN):
        use(blocking(server))
    assert server.sent == []


@pytest.mark.parametrize("use", OF_THE_CLIENT)
def test_use_after_closing_says_how_to_open(use: Callable[[BlockingTasksClient], object]) -> None:
    server = CancellableSession()
    with blocking(server) as client:
        pass
    with pytest.raises(TasksClientError, match=NOT_OPEN):
        use(client)
    assert server.sent == []


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda handle: handle.result(), id="result"),
        pytest.param(lambda handle: handle.refresh(), id="refresh"),
        pytest.param(lambda handle: handle.cancel(), id="cancel"),
        pytest.param(lambda handle: next(handle.updates()), id="updates"),
    ],
)
def test_a_handle_outlives_its_client_as_something_to_look_at(
    use: Callable[[BlockingTaskHandle], object],
) -> None:
    with blocking(CancellableSession()) as client:
        handle = client.start_tool("tool")
    assert (handle.task_id, handle.tool, handle.done) == (TASK, "tool", False)
    assert handle.reference["task_id"] == TASK
    with pytest.raises(TasksClientError, match=NOT_OPEN):
        use(handle)


def test_a_client_is_opened_once() -> None:
    with (
        blocking(CancellableSession()) as client,
        pytest.raises(TasksClientError, match="opened once"),
        client,
    ):
        pass
    with pytest.raises(TasksClientError, match="Make another one"), client:
        pass


def test_opening_it_again_while_it_is_open_leaves_it_open() -> None:
    with blocking(CancellableSession()) as client:
        with pytest.raises(TasksClientError, match="opened once"), client:
            pass
        assert client.records() == []


def test_a_journal_that_cannot_be_opened_is_told_when_opening() -> None:
    server = CancellableSession()
    full = JournalError("The disk is full; free some space.")
    client = blocking(server, journal=ProbedJournal("open", error=full))
    with pytest.raises(JournalError, match="free some space"), client:
        pass
    with pytest.raises(TasksClientError, match=NOT_OPEN):
        client.records()


@pytest.mark.parametrize("server", [3, None, object()])
def test_a_server_of_the_wrong_type_is_refused_before_there_is_a_thread(server: Any) -> None:
    before = set(threading.enumerate())  # one of an earlier test may end meanwhile
    with pytest.raises(TypeError, match="server must be"):
        BlockingTasksClient(server, journal=MemoryJournal())
    assert not set(threading.enumerate()) - before


def test_an_exception_in_the_block_comes_out_as_it_is_and_everything_is_closed() -> None:
    class OursError(Exception):
        pass

    server = CancellableSession()

    def fail() -> None:
        with blocking(server) as client:
            client.start_tool("tool")
            raise OursError

    with pytest.raises(OursError):
        fail()
    assert server.closed


def test_nothing_is_asked_of_the_server_and_no_thread_is_left_after_the_block() -> None:
    before = set(threading.enumerate())
    polled = threading.Event()

    class Watched(CancellableSession):
        async def get(self, ref: TaskRef) -> Snapshot:
            polled.set()
            return await super().get(ref)

    server = Watched()
    with blocking(server) as client:
        client.start_tool("tool")
        assert polled.wait(SOON)
        assert set(threading.enumerate()) - before
    assert left_over(before) == []
    assert server.closed


# ── threads ───────────────────────────────────────────────────────────────────────────────────


class Counter(ScriptedSession):
    """Makes a task of its own of each call, which returns what the call was given."""

    async def call(self, call: ToolCall, before_send: BeforeSend = anyio.lowlevel.checkpoint) -> CallReply:
        await super().call(call, before_send)
        task_id = f"task-{call.arguments['n']}"
        self.gets[task_id] = [
            working(task_id, poll_interval_ms=5),
            completed(task_id, text_result(str(call.arguments["n"]))),
        ]
        reply = read_call_reply(working(task_id, poll_interval_ms=5))
        assert isinstance(reply, Created)
        return reply


def test_several_threads_may_call_at_once_and_each_gets_its_own_result() -> None:
    threads = 16
    server = Counter(calls=[AT_WORK])
    with blocking(server) as client, ThreadPoolExecutor(threads) as pool:
        together = threading.Barrier(threads)

        def call(n: int) -> str:
            together.wait(SOON)
            return text(client.call_tool("count", {"n": n}, timeout=SOON))

        assert list(pool.map(call, range(threads), timeout=SOON)) == [str(n) for n in range(threads)]


def test_several_threads_may_wait_for_one_handle() -> None:
    server = CancellableSession()
    with blocking(server) as client, ThreadPoolExecutor(4) as pool:
        handle = client.start_tool("tool")
        waiting = [pool.submit(handle.result, SOON) for _ in range(4)]
        server.finish()
        assert [text(future.result(SOON)) for future in waiting] == ["done"] * 4


def test_one_thread_that_times_out_does_not_disturb_another() -> None:
    server = CancellableSession()
    with blocking(server) as client:
        handle = client.start_tool("tool")
        with elsewhere(lambda: handle.result(SOON)) as waited:
            with pytest.raises(WaitTimeoutError):
                handle.result(0.02)
            server.finish()
            assert text(waited()) == "done"


def test_closing_in_one_thread_ends_the_wait_of_another_and_says_that_the_task_goes_on() -> None:
    polled = threading.Event()

    class Watched(CancellableSession):
        async def get(self, ref: TaskRef) -> Snapshot:
            polled.set()
            return await super().get(ref)

    with blocking(Watched()) as client, elsewhere(lambda: client.call_tool("tool")) as waited:
        assert polled.wait(SOON)
        client.__exit__(None, None, None)
        with pytest.raises(TasksClientError, match="resume"):
            waited()


# ── being interrupted ─────────────────────────────────────────────────────────────────────────


def waits_for_the_client(thread: threading.Thread) -> bool:
    """Whether a thread is inside a method of the client's, as far as it ever gets."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code is Future.result.__code__:
            return True
        frame = frame.f_back
    return False


class Interrupting(CancellableSession):
    """Presses Ctrl-C, once, when the main thread waits for the client."""

    may_interrupt = True
    """Whether the main thread is where it expects Ctrl-C."""

    async def get(self, ref: TaskRef) -> Snapshot:
        if self.may_interrupt and waits_for_the_client(threading.main_thread()):
            self.may_interrupt = False
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return await super().get(ref)


# More than any wait here, so that it is not the time limit that ends a call.
LATER = 6 * SOON


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Has Ctrl-C do what it does, which it does not for tests that a shell has put in the background."""
    if not hasattr(signal, "pthread_kill"):
        pytest.skip("no way to press Ctrl-C in just one thread")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


interruptible = pytest.mark.usefixtures("ctrl_c")


@interruptible
def test_ctrl_c_ends_the_call_inside_as_cancelling_it_would() -> None:
    server = Interrupting()
    with blocking(server, on_abandon="cancel") as client:
        with pytest.raises(KeyboardInterrupt):
            client.call_tool("tool", timeout=LATER)
        assert server.told_to_cancel.wait(SOON)
        assert len(client.records()) == 1, "the client is still good"


@interruptible
def test_ctrl_c_in_a_detaching_client_stops_the_observation_and_leaves_the_task_to_be_resumed() -> None:
    journal = MemoryJournal()
    server = Interrupting()
    with pytest.raises(KeyboardInterrupt), blocking(server, journal=journal) as client:
        client.call_tool("tool", timeout=LATER)
    assert server.log("tasks/cancel") == []
    server.finish()
    with blocking(server, journal=journal) as client:
        (handle,) = client.resume()
        assert text(handle.result(SOON)) == "done"


@interruptible
def test_ctrl_c_that_leaves_the_block_closes_only_after_the_abandoned_task_is_cancelled() -> None:
    told: list[str] = []

    class FarAway(Interrupting):
        async def cancel(self, ref: TaskRef) -> None:
            for _ in range(50):  # a request takes many turns of the loop
                await anyio.lowlevel.checkpoint()
            told.append("closed" if self.closed else "open")
            await super().cancel(ref)

    with pytest.raises(KeyboardInterrupt), blocking(FarAway(), on_abandon="cancel") as client:
        client.call_tool("tool", timeout=LATER)
    assert told == ["open"]


@interruptible
def test_ctrl_c_while_following_updates_comes_out_of_the_loop() -> None:
    server = Interrupting()
    server.may_interrupt = False  # the first poll may come before start_tool() has returned
    with blocking(server) as client:
        handle = client.start_tool("tool")
        server.may_interrupt = True
        with pytest.raises(KeyboardInterrupt):
            list(handle.updates())
        server.finish()
        assert text(handle.result(SOON)) == "done"


def test_a_call_whose_reply_does_not_come_is_given_up_when_the_client_closes() -> None:
    """Closing gives ``tools/call`` its grace, and not more."""
    server = CancellableSession(calls=[STALL])
    with blocking(server, poll=PollPolicy(call_grace_s=0.02)) as client, pytest.raises(WaitTimeoutError):
        client.call_tool("tool", timeout=0.02)
    assert server.closed


# ── made from the asynchronous one ────────────────────────────────────────────────────────────


def test_an_outcome_is_delivered_when_its_block_is_left_and_comes_again_otherwise() -> None:
    with blocking(CancellableSession(DONE)) as client:
        handle = client.start_tool("tool", idempotency_key="k")
        with pytest.raises(ZeroDivisionError), handle.outcome(SOON):
            raise ZeroDivisionError
        (resumed,) = client.resume()
        with resumed.outcome() as result:
            assert text(result) == "done"
            assert client.records()[0].delivered_at is None
        assert client.records()[0].delivered_at is not None
        assert client.resume() == []


@pytest.mark.parametrize("way", ["call_tool", "result", "outcome"])
def test_a_tool_that_raised_is_an_error_if_asked_for(way: str) -> None:
    server = CancellableSession(completed(TASK, text_result("no", is_error=True)))

    def wait(client: BlockingTasksClient) -> None:
        if way == "call_tool":
            client.call_tool("tool", idempotency_key="k", raise_on_error=True)
        elif way == "result":
            client.start_tool("tool", idempotency_key="k").result(raise_on_error=True)
        else:
            with client.start_tool("tool", idempotency_key="k").outcome(raise_on_error=True):
                raise AssertionError("the block is not entered")

    with blocking(server) as client:
        with pytest.raises(ToolError, match="returned an error: no") as caught:
            wait(client)
        assert client.call_tool("tool", idempotency_key="k") == caught.value.result
        assert client.records()[0].delivered_at is not None
        assert client.resume() == []


def test_what_nobody_drives_is_adopted_until_the_client_closes() -> None:
    journal = MemoryJournal()
    with blocking(CancellableSession(DONE), journal=journal) as client:
        client.start_tool("tool", idempotency_key="k")
    opened, adopted = threading.Event(), threading.Event()

    def work() -> list[str]:
        results = []
        opened.wait(SOON)
        for handle in client.adopt(limit=1):
            results.append(text(handle.result(SOON)))
            adopted.set()
        return results

    with elsewhere(work) as ended:
        with blocking(CancellableSession(DONE), journal=journal) as client:
            opened.set()
            assert adopted.wait(SOON)
        assert ended() == ["done"]


def test_the_ends_of_each_user_are_delivered_to_a_plain_function_until_the_client_closes() -> None:
    journal, stored = MemoryJournal(), queue.SimpleQueue[tuple[str, str]]()

    def of(principal: str) -> BlockingTasksClient:
        return blocking(CancellableSession(DONE), journal=journal, principal=principal)

    def store(record: TaskRecord, outcome: CallToolResult | TasksClientError) -> None:
        assert isinstance(outcome, CallToolResult)
        stored.put((record.scope.principal, text(outcome)))

    for principal in ("", "ada"):
        with of(principal) as client:
            client.start_tool("tool", idempotency_key="k")
    opened = threading.Event()
    with (
        of("ada") as ada,
        elsewhere(lambda: opened.wait(SOON) and client.deliver(store, client_of={"ada": ada}.get)) as ended,
    ):
        with of("") as client:
            opened.set()
            ends = {stored.get(timeout=SOON) for _ in range(2)}
        ended()
    assert ends == {("", "done"), ("ada", "done")}


def test_when_a_delivery_ends_so_do_those_of_other_users() -> None:
    journal, stored, opened = MemoryJournal(), queue.SimpleQueue[str](), threading.Event()

    def of(principal: str) -> BlockingTasksClient:
        return blocking(CancellableSession(DONE), journal=journal, principal=principal)

    def store(record: TaskRecord, outcome: object) -> None:
        stored.put(record.scope.principal)

    def begin(key: str) -> None:
        with of("ada") as client:
            for _ in client.start_tool("tool", idempotency_key=key).updates():
                pass

    begin("first")
    with of("ada") as ada:
        with elsewhere(
            lambda: opened.wait(SOON) and client.deliver(store, client_of={"ada": ada}.get)
        ) as ended:
            with of("") as client:
                opened.set()
                assert stored.get(timeout=SOON) == "ada"
            ended()
        begin("second")
        assert len(ada.resume()) == 1, "nobody delivers it"
        assert stored.empty()


def test_an_outcome_is_acknowledged_by_its_handle_or_its_record() -> None:
    for way in ("handle", "record"):
        with blocking(CancellableSession(DONE)) as client:
            handle = client.start_tool("tool", idempotency_key="k")
            for _ in handle.updates():
                pass
            (record,) = client.records()
            if way == "handle":
                handle.acknowledge()
            else:
                client.acknowledge(record)
            assert client.records()[0].delivered_at is not None


SAME = [
    *[(BlockingTasksClient, TasksClient, name) for name in ("call_tool", "start_tool", "attach", "records")],
    *[(BlockingTasksClient, TasksClient, name) for name in ("acknowledge", "deliver", "resume", "adopt")],
    *[
        (BlockingTaskHandle, TaskHandle, name)
        for name in ("result", "refresh", "cancel", "outcome", "updates")
    ],
    *[(BlockingQuestion, Question, name) for name in ("answer", "accept", "decline", "cancel")],
    *[(BlockingInbox, Inbox, name) for name in ("records", "questions", "question", "asked", "ended")],
]


def parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]


@pytest.mark.parametrize(
    ("made", "like", "name"), SAME, ids=[made.__name__ + "." + name for made, _, name in SAME]
)
def test_a_method_has_the_signature_and_the_documentation_of_the_asynchronous_one(
    made: type, like: type, name: str
) -> None:
    ours, theirs = getattr(made, name), getattr(like, name)
    assert parameters(ours) == parameters(theirs)
    assert ours.__doc__ == theirs.__doc__
    assert ours.__name__ == name
    assert not inspect.iscoroutinefunction(ours)


def test_the_client_is_made_with_the_arguments_of_the_asynchronous_one() -> None:
    assert parameters(BlockingTasksClient) == parameters(TasksClient)


@pytest.mark.parametrize(
    ("made", "like"),
    [
        (BlockingTasksClient, TasksClient),
        (BlockingTaskHandle, TaskHandle),
        (BlockingInbox, Inbox),
        (BlockingQuestion, Question),
    ],
)
def test_nothing_public_of_the_asynchronous_one_is_missing(made: type, like: type) -> None:
    def public(cls: type) -> set[str]:
        return {name for name in dir(cls) if not name.startswith("_")}

    inside = {"take_answer"}  # what a question that an inbox shows calls
    assert public(made) == public(like) - inside


def test_a_client_of_another_event_loop_is_refused() -> None:
    with pytest.raises(TypeError, match="the event loop it was made in"):
        BlockingTasksClient(mcp.Client("http://127.0.0.1:1/mcp"))


# ── in a process of its own ───────────────────────────────────────────────────────────────────


def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=60, check=False
    )


CHILD = """
import os, signal, sys, warnings
from mcp_tasks_client import BlockingTasksClient, MemoryJournal, TasksClientError
from mcp_tasks_client.testing import text_result, working
from tests.scripted_session import ScriptedSession
warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside a thread: that is the point
server = ScriptedSession(calls=[working("t"), text_result("done")])
with BlockingTasksClient(server, journal=MemoryJournal()) as client:
    handle = client.start_tool("tool")
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # a child that waits for a thread that is not there would wait for ever
        said = []
        uses = [lambda: client.call_tool("tool"), client.records, client.resume, handle.result, handle.cancel]
        for use in uses:
            try:
                use()
                said.append("went through")
            except TasksClientError as error:
                said.append("refused" if "was opened in another process" in str(error) else str(error))
        print("child:", said, flush=True)
        sys.exit(0)  # which leaves the block, and ends the interpreter as ever
    assert os.waitpid(pid, 0) == (pid, 0), "the child hung"
    print("parent:", client.call_tool("tool").content[0].text, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_is_refused_its_parents_client_and_ends() -> None:
    ran = run(CHILD)
    assert ran.stdout.splitlines() == [f"child: {['refused'] * 5}", "parent: done"], ran.stderr
    assert ran.returncode == 0


NEVER_CLOSED = """
from mcp_tasks_client import BlockingTasksClient, MemoryJournal
from mcp_tasks_client.testing import working
from tests.scripted_session import ScriptedSession
client = BlockingTasksClient(ScriptedSession(calls=[working("t")]), journal=MemoryJournal()).__enter__()
client.start_tool("tool")
print("left open")
"""


def test_a_client_that_nobody_closes_does_not_keep_the_process_from_ending() -> None:
    ran = run(NEVER_CLOSED)
    assert (ran.stdout, ran.returncode) == ("left open\n", 0), ran.stderr


INTERRUPTED = """
import logging, os, signal, sys, threading, time
from mcp_types import ElicitResult
from mcp_tasks_client import BlockingTasksClient, MemoryJournal, PollPolicy
from mcp_tasks_client.testing import input_required, working
from tests.scripted_session import STALL, ScriptedSession
logging.basicConfig(format="%(message)s", stream=sys.stdout, level=logging.INFO)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.alarm(50)

def press_ctrl_c():
    time.sleep(0.05)  # until the main thread waits again; pressed too early it interrupts as well
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

def ask(context, params):
    threading.Thread(target=press_ctrl_c, daemon=True).start()
    threading.Event().wait()  # for somebody who never answers

class InterruptedSession(ScriptedSession):
    async def cancel(self, ref):
        threading.Thread(target=press_ctrl_c, daemon=True).start()
        await super().cancel(ref)

form = {"message": "Go on?", "requestedSchema": {"type": "object"}}
asks = input_required("t", {"k": {"method": "elicitation/create", "params": form}}, poll_interval_ms=5)
server = InterruptedSession(calls=[working("t", poll_interval_ms=5)], gets={"t": [asks]}, cancels=[STALL])
options = {"elicitation": ask, "on_abandon": sys.argv[1], "poll": PollPolicy(cancel_timeout_s=600)}
with BlockingTasksClient(server, journal=MemoryJournal(), **options) as client:
    try:
        client.call_tool("tool")
    finally:
        print("call_tool ended", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no way to press Ctrl-C in just one thread")
def test_ctrl_c_while_a_plain_callback_waits_ends_the_process_and_says_what_still_runs() -> None:
    ran = run(INTERRUPTED, "detach")
    assert "KeyboardInterrupt" in ran.stderr
    assert "The elicitation callback has not returned yet" in ran.stdout
    assert "call_tool ended" in ran.stdout
    assert ran.returncode == -signal.SIGINT


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no way to press Ctrl-C in just one thread")
def test_a_second_ctrl_c_leaves_a_server_that_does_not_acknowledge_the_cancellation() -> None:
    ran = run(INTERRUPTED, "cancel")
    assert "KeyboardInterrupt" in ran.stderr
    assert "interrupt again to leave them" in ran.stdout
    assert "call_tool ended" in ran.stdout
    assert ran.returncode == -signal.SIGINT
