"""The same client, and inbox, for code without an event loop: one thread runs it, every method waits for it.

Nothing is written twice: each method is made from the asynchronous one, with its signature and its
documentation.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from threading import Event, Thread
from types import GenericAlias, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, get_args, get_type_hints

import anyio
from anyio.from_thread import BlockingPortal

from .aio.host_code import is_async
from .aio.uncut import in_loop
from .client import TasksClient
from .engine.delivery import Store
from .errors import InputUnansweredError, TasksClientError
from .handle import TaskHandle, TaskReference
from .hosts.sdk.introspection import is_client
from .inbox import Inbox
from .machine.record import Scope, TaskRecord
from .machine.states import LastFailure
from .protocol.task import Task
from .questions.callbacks import InputContext
from .questions.kinds import KINDS
from .questions.question import Question, ShownQuestion, shown_by

__all__ = ["BlockingInbox", "BlockingQuestion", "BlockingTaskHandle", "BlockingTasksClient"]

logger = logging.getLogger("mcp_tasks_client")

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
InnerT = TypeVar("InnerT")


class _Thread:
    """The thread with the event loop, while the client is open.

    Args:
        closed: The message of the error where there is no thread.
    """

    def __init__(self, closed: str) -> None:
        self._closed = closed

    portal: BlockingPortal | None = None

    runs: Thread | None = None
    """The thread itself."""

    pid = 0
    """The process that the thread was started in; a child of that process has no such thread."""

    left = False
    """Whether a second interrupt came while an interrupted call was waited for. Closing waits no more."""

    def start(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin something in the event loop. Its future may be cancelled.

        Raises:
            TasksClientError: There is no event loop, or it has ended.
        """
        if self.portal is None:
            raise TasksClientError(self._closed)
        if self.pid != os.getpid():
            raise TasksClientError("The client was opened in another process. Open one in this process.")
        if self.has_ended:
            raise _loop_ended()
        return self.portal.start_task_soon(partial(work, **kwargs), *args)

    def run(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        ended = Event()
        future = self.start(_awaited, work, args, kwargs, ended)
        try:
            return future.result()  # type: ignore[no-any-return]  # _awaited is not generic
        except CancelledError:
            assert self.runs is not None
            self.runs.join()  # only the end of the loop cancels the work
            raise _loop_ended() from None
        except InputUnansweredError as error:
            asked = [_block(one, self) if isinstance(one, Question) else one for one in error.questions]
            error.questions = tuple(asked)
            raise
        except BaseException:
            # An interrupt (Ctrl-C) ends the wait here. Closing the client must not come before the work has
            # stopped: it may still have to cancel the task at the server.
            if future.cancel():
                self._wait_for_stop(ended)
            raise

    @property
    def has_ended(self) -> bool:
        """True if an exception that is no ``Exception``, such as SystemExit, has ended the event loop."""
        return self.runs is not None and not self.runs.is_alive()

    def _wait_for_stop(self, ended: Event) -> None:
        logger.info("Interrupted. Waiting for requests in flight; interrupt again to leave them.")
        try:
            ended.wait()
        except KeyboardInterrupt:
            self.left = True
            raise


class _Blocking(Generic[InnerT]):
    """Something asynchronous, and the thread it lives in."""

    _inner: InnerT
    _thread: _Thread


def _waiting(
    method: Callable[Concatenate[InnerT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Blocking[InnerT], P], T]:
    """Make a blocking method of an asynchronous one."""

    def wait(self: _Blocking[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method, self._inner, *args, **kwargs)

    return update_wrapper(wait, method)


class _Block(AbstractContextManager[T]):
    """An asynchronous context manager, entered and left from a thread without an event loop."""

    def __init__(self, manager: AbstractAsyncContextManager[T], thread: _Thread) -> None:
        self._manager, self._thread = manager, thread

    def __enter__(self) -> T:
        return self._thread.run(self._manager.__aenter__)

    def __exit__(self, *raised: Any) -> bool | None:
        return self._thread.run(self._manager.__aexit__, *raised)


def _entering(
    method: Callable[Concatenate[InnerT, P], AbstractAsyncContextManager[T]],
) -> Callable[Concatenate[_Blocking[InnerT], P], AbstractContextManager[T]]:
    """Make a method that gives a context manager of one that gives an asynchronous one."""

    def enter(self: _Blocking[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Block(method(self._inner, *args, **kwargs), self._thread)

    (entered,) = get_args(get_type_hints(method)["return"])
    returned = GenericAlias(AbstractContextManager, (entered,))
    return _returning(returned, update_wrapper(enter, method))


def _giving(
    method: Callable[Concatenate[InnerT, P], Coroutine[Any, Any, T]], give: Callable[[T, _Thread], U]
) -> Callable[Concatenate[_Blocking[InnerT], P], U]:
    """Make a blocking method of an asynchronous one. ``give`` makes its return value block, too."""

    def wait(self: _Blocking[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> U:
        return give(self._thread.run(method, self._inner, *args, **kwargs), self._thread)

    return _returning(get_type_hints(give)["return"], update_wrapper(wait, method))


class _Iterating(Iterator[U], Generic[T, U]):
    """An asynchronous iterator for threads. Several may share it, and an error does not end it.

    ``until_closed``: it ends with its client.
    """

    def __init__(
        self, items: AsyncIterator[T], give: Callable[[T, _Thread], U], thread: _Thread, *, until_closed: bool
    ) -> None:
        self._items, self._give, self._thread, self._until_closed = items, give, thread, until_closed

    def __next__(self) -> U:
        if self._until_closed and self._thread.portal is None:
            raise StopIteration
        try:
            return self._give(self._thread.run(self._items.__anext__), self._thread)
        except StopAsyncIteration:
            raise StopIteration from None


def _iterating(
    method: Callable[Concatenate[InnerT, P], AsyncIterator[T]],
    give: Callable[[T, _Thread], U],
    *,
    until_closed: bool = True,
) -> Callable[Concatenate[_Blocking[InnerT], P], Iterator[U]]:
    """Make a method that gives an iterator of one that gives an asynchronous one."""

    def iterate(self: _Blocking[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[U]:
        items = method(self._inner, *args, **kwargs)
        return _Iterating(items, give, self._thread, until_closed=until_closed)

    returned = GenericAlias(Iterator, (get_type_hints(give)["return"],))
    return _returning(returned, update_wrapper(iterate, method))


def _returning(returned: object, method: Callable[P, T]) -> Callable[P, T]:
    """Have a method say that it returns another type than the asynchronous one that it was made of."""
    signature = inspect.signature(method).replace(return_annotation=returned)
    method.__annotations__ = {**method.__annotations__, "return": returned}
    method.__signature__ = signature  # type: ignore[attr-defined]  # where inspect and help() look first
    return method


def _made_like(
    make: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the signature of the asynchronous client's constructor."""

    def like(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        return update_wrapper(init, make.__init__, assigned=())

    return like


@dataclass(frozen=True, kw_only=True)
class BlockingQuestion(_Blocking[Question], ShownQuestion):
    """:class:`Question` without ``async``: of a blocking client or inbox, a handle, an error or a callback.

    One that was pickled has no client: ``client.answer(question.question_id, answer)``.
    """

    # Of one that was pickled: no question that could be answered, and a thread that says what to do.
    _inner: Question = field(default=cast("Question", None), repr=False, compare=False)
    _thread: _Thread = field(
        default=_Thread("This question is detached. Use: client.answer(question.question_id, answer)"),
        repr=False,
        compare=False,
    )

    answer = _waiting(Question.answer)
    accept = _waiting(Question.accept)
    decline = _waiting(Question.decline)
    cancel = _waiting(Question.cancel)


def _block(question: Question, thread: _Thread) -> BlockingQuestion:
    return BlockingQuestion(**shown_by(question), _inner=question, _thread=thread)


def _block_any(question: Question | None, thread: _Thread) -> BlockingQuestion | None:
    return None if question is None else _block(question, thread)


def _block_each(questions: list[Question], thread: _Thread) -> list[BlockingQuestion]:
    return [_block(question, thread) for question in questions]


def _asking(callback: Callable[..., T], thread: _Thread) -> Callable[..., T]:
    """A callback whose context has a question that blocks, for a callback that is a plain function."""

    def ask(context: InputContext, *params: Any) -> T:
        question: Any = _block_any(context.question, thread)
        return callback(replace(context, question=question), *params)

    return update_wrapper(ask, callback)


def _task(task: Task, thread: _Thread) -> Task:
    return task


def _record(record: TaskRecord, thread: _Thread) -> TaskRecord:
    return record


class BlockingTaskHandle(_Blocking[TaskHandle]):
    """:class:`TaskHandle` without ``async``."""

    def __init__(self, handle: TaskHandle, thread: _Thread) -> None:
        self._inner, self._thread = handle, thread

    result = _waiting(TaskHandle.result)
    refresh = _waiting(TaskHandle.refresh)
    cancel = _waiting(TaskHandle.cancel)
    estimate = _waiting(TaskHandle.estimate)
    acknowledge = _waiting(TaskHandle.acknowledge)
    outcome = _entering(TaskHandle.outcome)
    peek = _waiting(TaskHandle.peek)
    questions = _giving(TaskHandle.questions, _block_each)
    answer = _waiting(TaskHandle.answer)

    updates = _iterating(TaskHandle.updates, _task, until_closed=False)

    @property
    def record(self) -> TaskRecord | None:
        """All that is known here of the call; ``None`` of a handle that is detached."""
        return self._inner.record

    @property
    def task_id(self) -> str | None:
        """The server's ID; ``None`` while there is no task."""
        return self._inner.task_id

    @property
    def tool(self) -> str | None:
        """The tool's name."""
        return self._inner.tool

    @property
    def label(self) -> str | None:
        """The text for people that the call was given; ``None`` if none."""
        return self._inner.label

    @property
    def task(self) -> Task | None:
        """The latest snapshot."""
        return self._inner.task

    @property
    def last_failure(self) -> LastFailure | None:
        """Why the task is not seen, and since when; ``None`` while requests for it get through."""
        return self._inner.last_failure

    @property
    def immediate_response(self) -> str | None:
        """The server's words for the model while the task goes on; ``None`` if there are none."""
        return self._inner.immediate_response

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._inner.done

    @property
    def reference(self) -> TaskReference:
        """A token for ``attach``."""
        return self._inner.reference

    def __eq__(self, other: object) -> bool:
        return self._inner == other._inner if isinstance(other, BlockingTaskHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner).replace("TaskHandle", "BlockingTaskHandle", 1)


def _handle(handle: TaskHandle, thread: _Thread) -> BlockingTaskHandle:
    return BlockingTaskHandle(handle, thread)


def _handles(handles: list[TaskHandle], thread: _Thread) -> list[BlockingTaskHandle]:
    return [BlockingTaskHandle(handle, thread) for handle in handles]


OpenedT = TypeVar("OpenedT", bound=AbstractAsyncContextManager[Any])


class _Opening(_Blocking[OpenedT]):
    """Something that is opened, in a thread of its own, and closed."""

    _stack: ExitStack

    def __enter__(self) -> Self:
        """Start the thread and open the client; see ``__aenter__`` of the asynchronous one for its errors."""
        with ExitStack() as stack:
            portal, thread = _start_event_loop(stack)
            stack.enter_context(portal.wrap_async_context_manager(self._inner))
            self._thread.runs = thread
            self._thread.portal, self._thread.pid, self._stack = portal, os.getpid(), stack.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client and end the thread.

        Does neither in a child of the process that opened the client, nor after a second interrupt. In code
        that the client awaits itself, such as a callback, it returns at once, and the closing goes on.
        """
        thread, thread.portal = self._thread, None
        if thread.left or thread.pid != os.getpid() or thread.has_ended:
            return
        if self._awaits_caller():
            self._closing = Thread(target=self._stack.close, name="mcp_tasks_client closing", daemon=True)
            self._closing.start()
            return
        if self._closing is not None:
            self._closing.join()
        self._stack.close()

    _closing: Thread | None = None
    """Closes the client, where code has closed it that the client awaits."""

    def _awaits_caller(self) -> bool:
        """True if closing would wait for the code that calls this."""
        return False


class BlockingTasksClient(_Opening[TasksClient]):
    """:class:`TasksClient` without ``async``: ``with BlockingTasksClient(...) as client``.

    Takes the same arguments. Callbacks that are plain functions run in worker threads and may block;
    coroutine functions run in the client's own event loop. Methods may be called from several
    threads at once. Its questions block, also those of errors and of callbacks that are plain functions.
    Errors carry asynchronous handles: ``client.attach(error.handle.reference)``.
    A child that was forked from the process has to open a client of its own. A client that is never closed
    does not keep the process from ending, which leaves its calls as a kill does.
    """

    # A decorated function, since to a type checker a class whose __init__ is a variable is Any.
    @_made_like(TasksClient)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if any(is_client(argument) for argument in (*args[:1], kwargs.get("server"))):
            raise TypeError(
                "a client lives in the event loop it was made in; give a URL, or use TasksClient there"
            )
        self._thread = _Thread("The client is not open. Use: with BlockingTasksClient(...) as client")
        for name in [kind.name for kind in KINDS.values()]:
            callback = kwargs.get(name)
            if callable(callback) and not is_async(callback):
                kwargs[name] = _asking(callback, self._thread)
        self._inner, self._stack = TasksClient(*args, **kwargs), ExitStack()

    def _awaits_caller(self) -> bool:
        return self._inner._awaits_caller()

    @property
    def endpoint(self) -> str:
        """The server's name in the journal, as a :class:`BlockingInbox` takes it."""
        return self._inner.endpoint

    call_tool = _waiting(TasksClient.call_tool)
    acknowledge = _waiting(TasksClient.acknowledge)
    records = _waiting(TasksClient.records)
    estimate = _waiting(TasksClient.estimate)
    questions = _giving(TasksClient.questions, _block_each)
    answer = _waiting(TasksClient.answer)
    initialize = _waiting(TasksClient.initialize)
    list_tools = _waiting(TasksClient.list_tools)
    send_ping = _waiting(TasksClient.send_ping)
    request = _waiting(TasksClient.request)
    prune = _waiting(TasksClient.prune)
    deliver = _waiting(TasksClient.deliver)
    start_tool = _giving(TasksClient.start_tool, _handle)
    attach = _giving(TasksClient.attach, _handle)
    resume = _giving(TasksClient.resume, _handles)
    adopt = _iterating(TasksClient.adopt, _handle)

    def _delivers_for(self) -> tuple[Scope, Hashable, str | None]:
        return self._inner._delivers_for()

    async def _deliver_beside(self, store: Store, limit: int | None) -> None:
        """Deliver in the client's own event loop until the caller, in another one, is cancelled."""
        over = anyio.Event()
        end = in_loop(over.set)
        future = self._thread.start(partial(self._inner.deliver, store, limit=limit))
        future.add_done_callback(lambda _: end())
        try:
            await over.wait()
        except anyio.get_cancelled_exc_class():
            future.cancel()
            raise
        future.result()


class BlockingInbox(_Opening[Inbox]):
    """:class:`Inbox` without ``async``: ``with BlockingInbox(...) as inbox``.

    Takes the same arguments.
    """

    @_made_like(Inbox)  # as above
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._inner, self._stack = Inbox(*args, **kwargs), ExitStack()
        self._thread = _Thread("The inbox is not open. Use: with BlockingInbox(...) as inbox")

    record = _waiting(Inbox.record)
    records = _waiting(Inbox.records)
    questions = _giving(Inbox.questions, _block_each)
    question = _giving(Inbox.question, _block_any)
    asked = _iterating(Inbox.asked, _block)
    ended = _iterating(Inbox.ended, _record)
    is_driven = _waiting(Inbox.is_driven)
    estimate = _waiting(Inbox.estimate)
    answer = _waiting(Inbox.answer)
    cancel = _waiting(Inbox.cancel)
    acknowledge = _waiting(Inbox.acknowledge)
    outcome = _waiting(Inbox.outcome)
    prune = _waiting(Inbox.prune)


def _start_event_loop(stack: ExitStack) -> tuple[BlockingPortal, Thread]:
    """Start a thread with an event loop. It ends with the stack, or with the process.

    Not by ``start_blocking_portal``, which waits for its thread when the interpreter throws it away: a client
    that was never closed, or that a fork has inherited, would keep the process from ending.
    """
    opened: Future[BlockingPortal] = Future()
    run = contextvars.Context().run  # nothing of the caller's event loop, which Python 3.14 may hand on
    thread = Thread(target=run, args=(_run_event_loop, opened), name="mcp_tasks_client", daemon=True)
    thread.start()
    portal = opened.result()
    stack.callback(thread.join)
    stack.callback(lambda: portal.call(portal.stop))
    return portal, thread


def _run_event_loop(opened: Future[BlockingPortal]) -> None:
    async def serve() -> None:
        async with BlockingPortal() as portal:
            opened.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        anyio.run(serve)
    except BaseException as error:
        if opened.done():
            raise
        opened.set_exception(error)


def _loop_ended() -> TasksClientError:
    return TasksClientError(
        "The client's event loop was ended: code that runs in it has raised SystemExit, KeyboardInterrupt or "
        "the like. Open another client; its resume() takes up what goes on."
    )


async def _awaited(work: Any, args: tuple[Any, ...], kwargs: dict[str, Any], ended: Event) -> Any:
    try:
        return await work(*args, **kwargs)
    finally:
        ended.set()
