"""The server's questions: handed to the host's callbacks, their answers checked before they go.

A task is no higher-trust channel. Nothing is answered by default, no URL is opened, and a
question without a callback stays open: the task waits, and the error says which callback is
missing.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import anyio
from mcp_types import (
    INTERNAL_ERROR,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    RequestParams,
)
from pydantic import BaseModel

from ..aio.host_code import call_host, describe, was_cancelled_from_inside
from ..machine.record import TaskReference
from ..protocol import JSONObject
from ..protocol.replies import RpcError
from ..protocol.task import Task
from .answers import NoAnswerError, check_form, dump_answer, fill_answer, read_params
from .context import CallContext
from .kinds import KINDS, Kind
from .question import Question

__all__ = [
    "Callbacks",
    "ElicitationCallback",
    "InputContext",
    "Inputs",
    "NoAnswerError",
    "RootsCallback",
    "SamplingCallback",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputContext:
    """The call and the task that a question is about; the first argument of every callback."""

    tool: str | None
    """The tool that asks; ``None`` for a task that was attached by its bare ID."""

    key: str = field(repr=False)
    """The server's key of the question, unique for the life of the task. May contain the task ID."""

    task: Task | None
    """The latest snapshot; ``None`` if the server asks before there is a task."""

    label: str | None = None
    """The caller's short text about the call, for people."""

    question: Question | None = None
    """The same question, for a later answer; ``None`` if it belongs to no call of this client.

    Its methods are awaited. In a callback of a :class:`BlockingTasksClient` that is a plain function it is a
    :class:`BlockingQuestion`.
    """

    idempotency_key: str | None = None
    """The idempotency key of the call."""

    reference: TaskReference | None = field(default=None, repr=False)
    """The call's reference, for :meth:`TasksClient.attach`; ``None`` as above."""

    context: CallContext | None = field(default=None, repr=False)
    """The context of the call, where the way in serves a host's requests. Of no use to a callback."""


_Elicited: TypeAlias = ElicitResult | ErrorData | None
_Sampled: TypeAlias = CreateMessageResult | CreateMessageResultWithTools | ErrorData | None
_Roots: TypeAlias = ListRootsResult | ErrorData | None

ElicitationCallback: TypeAlias = (
    Callable[[Any, ElicitRequestParams], Awaitable[_Elicited] | _Elicited] | Literal["later"]
)
"""Answers the server's elicitations, async or in a thread. Gets an :class:`InputContext` and the params.

It returns ``None`` to leave the question for a later answer. ``"later"`` leaves every question."""

SamplingCallback: TypeAlias = (
    Callable[[Any, CreateMessageRequestParams], Awaitable[_Sampled] | _Sampled] | Literal["later"]
)
"""Answers the server's sampling requests, likewise."""

RootsCallback: TypeAlias = (
    Callable[[Any], Awaitable[_Roots] | _Roots]
    | Callable[[Any, RequestParams | None], Awaitable[_Roots] | _Roots]
    | Literal["later"]
)
"""With or without the params, which are empty; the official SDK's shape is without."""


logger = logging.getLogger("mcp_tasks_client")


class Inputs(ABC):
    """Answers a server's questions."""

    leaves_questions: ClassVar[bool] = False
    """Whether the reply to a call may put a question without an answer to the host. The call is then left to
    this process alone, since another one must not ask another person meanwhile."""

    @property
    @abstractmethod
    def capabilities(self) -> JSONObject:
        """The client capabilities to declare: only for kinds that can really be answered."""

    @abstractmethod
    async def answer(self, context: InputContext, request: JSONObject) -> JSONObject | None:
        """The answer to one input request, in its form on the wire; ``None`` if it is answered later.

        Raises:
            NoAnswerError: There is none that could be sent. ``__cause__`` is the callback's own error.
        """

    async def reply(self, context: InputContext, request: JSONObject) -> JSONObject | RpcError:
        """The answer to a server that waits for a reply, or the JSON-RPC error to send in its place.

        Every error of the host's callbacks becomes such a reply; none is raised.
        """
        try:
            answer = await self.answer(context, request)
            if answer is None:
                raise NoAnswerError("it is answered later, and this server waits for a reply")
            return answer
        except NoAnswerError as error:
            return error.refusal or RpcError(INTERNAL_ERROR, f"The client has no answer: {error}", None)
        except Exception:
            logger.exception("A question could not be asked")
            return RpcError(INTERNAL_ERROR, "The client has no answer", None)


class Callbacks(Inputs):
    """The host's own callbacks, plain functions or coroutine functions.

    A plain function runs in a thread of its own, since it may wait for a person to type. If the caller stops
    waiting meanwhile, the thread is left to itself, and its answer is not used. It does not keep the process
    from ending.

    Attributes:
        elicitation: As given; ``"later"`` is a function that answers nothing.
        sampling: Likewise.
        roots: Likewise.

    Raises:
        TypeError: A callback cannot be called.
        ValueError: A callback is a text, and not ``"later"``.
    """

    def __init__(
        self,
        *,
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
    ) -> None:
        self.elicitation = _called(elicitation, "elicitation")
        self.sampling = _called(sampling, "sampling")
        self.roots = _called(roots, "roots")

    @property
    def capabilities(self) -> JSONObject:
        """``elicitation`` (form and URL), ``sampling`` and ``roots``, where there is a callback."""
        return {kind.name: kind.capability for kind in KINDS.values() if getattr(self, kind.name) is not None}

    async def answer(self, context: InputContext, request: JSONObject) -> JSONObject | None:
        """Ask the callback for this kind of request, and check its answer."""
        params, kind = read_params(request), KINDS[request["method"]]
        if isinstance(params, ElicitRequestFormParams):
            # A schema that cannot be used is refused before anybody is asked. This loads the validator too,
            # which would otherwise delay the commit of the first answer.
            check_form({}, params)
        callback = getattr(self, kind.name)
        takes_params = kind.needs_params or _takes_params(callback)
        answer = _dump(kind, await _ask(callback, kind, (context, params) if takes_params else (context,)))
        if answer is None:
            return None
        filled, misfit = fill_answer(request, answer)
        if misfit is not None:
            raise NoAnswerError(
                f"the {kind.name} callback accepted with content that does not match the requestedSchema, "
                f"{misfit}; validate before you accept"
            )
        return filled


def _called(callback: Callable[..., Any] | str | None, name: str) -> Callable[..., Any] | None:
    if isinstance(callback, str):
        if callback != "later":
            raise ValueError(f'{name} must be a function, "later" or None, got {callback!r}')
        return _answer_later
    if not (callback is None or callable(callback)):
        raise TypeError(f'{name} must be a function, "later" or None, not {type(callback).__name__}')
    return callback


async def _answer_later(*_: object) -> None:
    """The callback that leaves every question to a later answer."""


def _takes_params(callback: Callable[..., Any] | None) -> bool:
    """Whether a callback takes the params too, where the SDK's shape is without."""
    if callback is None:
        return False
    try:
        inspect.signature(callback).bind(None, None)
    except (TypeError, ValueError):  # one argument, or a callable that does not tell
        return False
    return True


async def _ask(
    callback: Callable[..., Any] | None, kind: Kind, arguments: tuple[Any, ...]
) -> BaseModel | None:
    name = kind.name
    if callback is None:
        raise NoAnswerError(
            f"there is no {name} callback; answer by error.questions, or pass {name}=... to the client and "
            "resume the task"
        )
    try:
        result = await call_host(callback, f"{name} callback", *arguments)
    except anyio.get_cancelled_exc_class():
        if not was_cancelled_from_inside():
            raise
        raise NoAnswerError(f"the {name} callback was cancelled; answer, or return ErrorData") from None
    except Exception as error:
        raise NoAnswerError(f"the {name} callback raised {describe(error)}") from error
    if result is None:
        return None
    if isinstance(result, ErrorData):
        raise NoAnswerError(
            f"the {name} callback refused with error {result.code}: {result.message}",
            RpcError(result.code, result.message, _data(name, result)),
        )
    if not isinstance(result, kind.answers):
        names = " or ".join(t.__name__ for t in kind.answers)
        raise NoAnswerError(
            f"the {name} callback returned {type(result).__name__}; return mcp_types.{names} or ErrorData, "
            "or None to leave the question to others"
        )
    return result


def _data(name: str, refusal: ErrorData) -> Any:
    """The ``data`` of an error that a callback returned; ``None`` if it has no JSON form.

    The refusal itself is still sent then: its code and its message are enough.
    """
    try:
        return dump_answer(refusal).get("data")
    except ValueError as error:
        logger.warning("What the %s callback refused with has no JSON form: %s", name, error)
        return None


def _dump(kind: Kind, result: BaseModel | None) -> JSONObject | None:
    try:
        return None if result is None else dump_answer(result)
    except ValueError as error:  # pydantic's serialization errors are of this kind too
        raise NoAnswerError(f"what the {kind.name} callback returned has no JSON form: {error}") from None
