"""The server's questions: handed to the host's callbacks, their answers checked before they go.

A task is no higher-trust channel. Nothing is answered by default, no URL is opened, and a
question without a callback stays open: the task waits, and the error says which callback is
missing.
"""

from __future__ import annotations

import contextvars
import inspect
import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import anyio
from anyio.lowlevel import RunVar
from mcp_types import (
    INTERNAL_ERROR,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    RequestParams,
    Result,
)
from pydantic import BaseModel, ValidationError

from .host_code import was_cancelled_from_inside
from .protocol import JSONObject
from .protocol.json_schema import FORM_STEPS, TooCostlyError, UnusableSchemaError, find_mismatch
from .protocol.replies import RpcError
from .protocol.task import Task
from .protocol.text import quote
from .uncut import on_asyncio

__all__ = [
    "Callbacks",
    "ElicitationCallback",
    "InputContext",
    "Inputs",
    "NoAnswerError",
    "RootsCallback",
    "SamplingCallback",
    "check_answer",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputContext:
    """What a question is about; the first argument of every callback."""

    tool: str | None
    """The tool that asks; ``None`` for a task that was attached by its bare ID."""

    key: str = field(repr=False)
    """The server's key of the question, unique for the life of the task. May contain the task ID."""

    task: Task | None
    """The latest snapshot; ``None`` if the server asks before there is a task."""

    context: object = field(default=None, repr=False)
    """What the way in brought along with the call, such as a host's request. Of no use to a callback."""


ParamsT = TypeVar("ParamsT", bound=BaseModel)

_SamplingResult: TypeAlias = CreateMessageResult | CreateMessageResultWithTools

ElicitationCallback: TypeAlias = Callable[
    [Any, ElicitRequestParams], Awaitable[ElicitResult | ErrorData] | ElicitResult | ErrorData
]
"""Answers the server's elicitations, async or in a thread. Gets an :class:`InputContext` and the params."""

SamplingCallback: TypeAlias = Callable[
    [Any, CreateMessageRequestParams], Awaitable[_SamplingResult | ErrorData] | _SamplingResult | ErrorData
]
"""Answers the server's sampling requests, likewise."""

RootsCallback: TypeAlias = (
    Callable[[Any], Awaitable[ListRootsResult | ErrorData] | ListRootsResult | ErrorData]
    | Callable[
        [Any, RequestParams | None], Awaitable[ListRootsResult | ErrorData] | ListRootsResult | ErrorData
    ]
)
"""With or without the params, which are empty; the official SDK's shape is without."""


logger = logging.getLogger("mcp_tasks_client")

_MOST_THREADS: Final = 1000
_LIMITER: Final = RunVar[anyio.CapacityLimiter]("mcp_tasks_client_callbacks")


class NoAnswerError(Exception):
    """A question got no answer that can be sent. The message says why, and what would help.

    Attributes:
        refusal: The error that the host wants to be said instead; ``None`` if it said nothing of the kind.
    """

    def __init__(self, message: str, refusal: RpcError | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal


class Inputs(ABC):
    """Who answers a server's questions."""

    leaves_questions: ClassVar[bool] = False
    """Whether the reply to a call may put a question without an answer to the host. The call is then left to
    this process alone, since another one must not ask another person meanwhile."""

    @property
    @abstractmethod
    def capabilities(self) -> JSONObject:
        """The client capabilities to declare: only what can really be answered."""

    @abstractmethod
    async def answer(self, context: InputContext, request: JSONObject) -> JSONObject:
        """The answer to one input request, in its form on the wire.

        Raises:
            NoAnswerError: There is none that could be sent. ``__cause__`` is what a callback raised.
        """

    async def reply(self, context: InputContext, request: JSONObject) -> JSONObject | RpcError:
        """The answer to a server that waits for a reply, or the JSON-RPC error to send in its place.

        Every error of the host's callbacks becomes such a reply; none is raised.
        """
        try:
            return await self.answer(context, request)
        except NoAnswerError as error:
            return error.refusal or RpcError(INTERNAL_ERROR, f"The client has no answer: {error}", None)
        except Exception:
            logger.exception("A question could not be asked")
            return RpcError(INTERNAL_ERROR, "The client has no answer", None)


class Callbacks(Inputs):
    """The host's own callbacks, plain functions or coroutine functions.

    A plain function runs in a thread of its own, since it may well wait for somebody to type. If the
    caller stops waiting meanwhile, the thread is left to itself and what it returns is not used. It
    does not keep the process from ending.

    Attributes:
        elicitation: As given.
        sampling: As given.
        roots: As given.
    """

    def __init__(
        self,
        *,
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
    ) -> None:
        self.elicitation = elicitation
        self.sampling = sampling
        self.roots = roots

    @property
    def capabilities(self) -> JSONObject:
        """``elicitation`` (form and URL), ``sampling`` and ``roots``, where there is a callback."""
        declared: JSONObject = {}
        if self.elicitation is not None:
            declared["elicitation"] = {"form": {}, "url": {}}
        if self.sampling is not None:
            declared["sampling"] = {}
        if self.roots is not None:
            declared["roots"] = {}
        return declared

    async def answer(self, context: InputContext, request: JSONObject) -> JSONObject:
        """Ask the callback for this kind of request, and check what it returns."""
        params = request.get("params")
        match request.get("method"):
            case "elicitation/create":
                return await self._elicit(context, params)
            case "sampling/createMessage":
                read = _read(CreateMessageRequestParams, params)
                expected = (CreateMessageResult, CreateMessageResultWithTools)
                return _wire("sampling", await _ask(self.sampling, "sampling", (context, read), expected))
            case "roots/list":
                nothing = _read(RequestParams, params) if params is not None else None
                arguments = (context, nothing) if _takes_params(self.roots) else (context,)
                return _wire("roots", await _ask(self.roots, "roots", arguments, (ListRootsResult,)))
            case method:
                raise NoAnswerError(f"the server asked {quote(repr(method))}, which no client can answer")

    async def _elicit(self, context: InputContext, params: object) -> JSONObject:
        form: ElicitRequestFormParams | None = None
        read: ElicitRequestParams
        if _is_form(params):
            read = form = _read(ElicitRequestFormParams, params)
        else:
            read = _read(ElicitRequestURLParams, params)
        if form is not None:
            # A schema that cannot be used is refused before anybody is asked. This loads the validator too,
            # which would otherwise delay the commit of the first answer.
            _find_mismatch({}, form)
        result = await _ask(self.elicitation, "elicitation", (context, read), (ElicitResult,))
        assert isinstance(result, ElicitResult)  # _ask has checked the type
        if form is None or result.action != "accept":
            # The content belongs to an accepted form only.
            return _wire("elicitation", result.model_copy(update={"content": None}))
        content = result.content or {}
        problem = _find_mismatch(content, form)
        if problem is not None:
            raise NoAnswerError(
                f"the elicitation callback accepted with content that does not match the requestedSchema, "
                f"{problem}; validate before you accept"
            )
        return _wire("elicitation", result.model_copy(update={"content": content}))


_ANSWERS: Final[Mapping[str, type[BaseModel]]] = {
    "elicitation/create": ElicitResult,
    "sampling/createMessage": CreateMessageResultWithTools,
    "roots/list": ListRootsResult,
}


def check_answer(request: JSONObject, answer: JSONObject) -> None:
    """See that an answer is one to a request. Its form on the wire counts, whoever gave it.

    Args:
        request: The server's.
        answer: ``ElicitResult``, ``CreateMessageResult`` or ``ListRootsResult``.

    Raises:
        NoAnswerError: It is none. The message says what is wrong, and quotes nothing of it.
    """
    kind = _ANSWERS.get(str(request.get("method")), Result)
    try:
        result = kind.model_validate(answer, by_name=False)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = quote(".".join(map(str, problem["loc"])) or "the answer")
        raise NoAnswerError(f"the answer is malformed, {where}: {problem['msg']}") from None
    params = request.get("params")
    if not (isinstance(result, ElicitResult) and result.action == "accept" and _is_form(params)):
        return
    problem_of_form = _find_mismatch(result.content or {}, _read(ElicitRequestFormParams, params))
    if problem_of_form is not None:
        raise NoAnswerError(f"the answer does not match the requestedSchema, {problem_of_form}")


def _is_form(params: object) -> bool:
    return isinstance(params, dict) and params.get("mode", "form") == "form"


def _find_mismatch(content: JSONObject, form: ElicitRequestFormParams) -> str | None:
    try:
        return find_mismatch(content, form.requested_schema, FORM_STEPS)
    except (UnusableSchemaError, TooCostlyError) as error:
        raise NoAnswerError(f"the server's requestedSchema cannot be used: {error}") from None


def _threads() -> anyio.CapacityLimiter:
    # Not anyio's limiter for worker threads: the host's other threads must not wait for people who take their
    # time. A callback that nobody waits for any more does not count.
    try:
        return _LIMITER.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_MOST_THREADS)
        _LIMITER.set(limiter)
        return limiter


def _takes_params(roots: Callable[..., Any] | None) -> bool:
    """Whether the roots callback takes the params too; the SDK's shape is without."""
    if roots is None:
        return False
    try:
        inspect.signature(roots).bind(None, None)
    except (TypeError, ValueError):  # one argument, or a callable that does not tell
        return False
    return True


def _is_async(callback: object) -> bool:
    called = getattr(type(callback), "__call__", None)  # noqa: B004  # which of the two it is, not whether
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(called)


async def _ask(
    callback: Callable[..., Any] | None,
    name: str,
    arguments: tuple[Any, ...],
    expected: tuple[type[BaseModel], ...],
) -> BaseModel:
    if callback is None:
        raise NoAnswerError(f"there is no {name} callback; pass {name}=... to the client and resume the task")
    try:
        if _is_async(callback):
            result = await callback(*arguments)
        else:
            result = await _in_thread(callback, name, arguments)
            if inspect.isawaitable(result):
                result = await result
    except anyio.get_cancelled_exc_class():
        if not was_cancelled_from_inside():
            raise
        raise NoAnswerError(f"the {name} callback was cancelled; answer, or return ErrorData") from None
    except Exception as error:
        raise NoAnswerError(f"the {name} callback raised {type(error).__name__}: {error}") from error
    if isinstance(result, ErrorData):
        raise NoAnswerError(
            f"the {name} callback refused with error {result.code}: {result.message}",
            RpcError(result.code, result.message, _data(name, result)),
        )
    if not isinstance(result, expected):
        names = " or ".join(t.__name__ for t in expected)
        raise NoAnswerError(
            f"the {name} callback returned {type(result).__name__}; return mcp_types.{names} or ErrorData"
        )
    return result


async def _in_thread(callback: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
    """Call a plain function. What it returns when nobody waits for it any more is not used.

    Not by ``anyio.to_thread``, for whose threads the end of the process waits on asyncio: after Ctrl-C it
    would hang until somebody has typed.
    """
    made, failed, abandoned = list[Any](), list[BaseException](), list[bool]()
    over, call_soon, context = anyio.Event(), _call_soon(), contextvars.copy_context()

    def close() -> None:
        for one in made:
            if inspect.iscoroutine(one):
                one.close()  # or it would be said that it was never awaited

    def call() -> None:
        try:
            made.append(context.run(callback, *arguments))
        except BaseException as error:
            failed.append(error)
        if abandoned:
            close()
        with suppress(RuntimeError):  # the event loop has ended
            call_soon(over.set)

    async with _threads():
        threading.Thread(target=call, name=f"mcp_tasks_client {name} callback", daemon=True).start()
        try:
            await over.wait()
        except anyio.get_cancelled_exc_class():
            abandoned.append(True)
            close()
            if not (made or failed):
                logger.warning(
                    "The %s callback has not returned yet. Nobody waits for its answer any more, but its "
                    "thread goes on, at most until the process ends",
                    name,
                )
            raise
    if failed:
        raise failed[0]
    return made[0]


def _call_soon() -> Callable[[Callable[[], object]], object]:
    """What calls a function in the event loop that runs us, from any thread."""
    if on_asyncio():
        import asyncio  # loaded already by the event loop that runs us

        return asyncio.get_running_loop().call_soon_threadsafe
    import trio

    return trio.lowlevel.current_trio_token().run_sync_soon


def _read(model: type[ParamsT], params: object) -> ParamsT:
    try:
        return model.model_validate(params, extra="allow")
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = quote(".".join(map(str, problem["loc"])) or "params")
        raise NoAnswerError(f"the server's request is malformed, {where}: {quote(problem['msg'])}") from None


def _data(name: str, refusal: ErrorData) -> Any:
    """The ``data`` of an error that a callback returned; ``None`` if it has no JSON form.

    The refusal itself is still sent then: its code and its message are enough.
    """
    try:
        return _plain(refusal).get("data")
    except ValueError as error:
        logger.warning("What the %s callback refused with has no JSON form: %s", name, error)
        return None


def _plain(result: BaseModel) -> Any:
    # Through text, since what has no JSON form could be neither journaled nor sent.
    dumped = result.model_dump(by_alias=True, exclude_none=True, mode="json", warnings=False)
    return json.loads(json.dumps(dumped, allow_nan=False))


def _wire(name: str, result: BaseModel) -> JSONObject:
    try:
        answer = _plain(result)
    except ValueError as error:  # pydantic's serialization errors are of this kind too
        raise NoAnswerError(f"what the {name} callback returned has no JSON form: {error}") from None
    assert isinstance(answer, dict)
    return answer
