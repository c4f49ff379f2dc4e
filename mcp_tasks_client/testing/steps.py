"""The steps of a tool: the deeds of a scripted server for one call, in order.

A tool that creates a task has a list such as
``[work(30), ask("name", form("Who?", name="string")), complete(text_result("done"))]``. One that asks
first begins with :func:`ask_first`, one that answers at once ends with :func:`reply`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, overload

from ..protocol import JSONObject

__all__ = [
    "Abort",
    "Answers",
    "Ask",
    "AskFirst",
    "Complete",
    "Fail",
    "Hint",
    "Reply",
    "Result",
    "Step",
    "Vanish",
    "Work",
    "abort",
    "ask",
    "ask_first",
    "check_steps",
    "complete",
    "fail",
    "form",
    "hint",
    "reply",
    "vanish",
    "work",
]

Answers: TypeAlias = Mapping[str, JSONObject]
"""The client's answers by key, in rounds before the task and in the task."""

Refuse: TypeAlias = Callable[[Answers], str | None]
"""Returns the reason why a server refuses these answers; ``None`` if it takes them."""

Result: TypeAlias = JSONObject | Callable[[Answers], JSONObject]
"""A tool's result, or a function that makes one from the answers."""


@dataclass(frozen=True, slots=True)
class Work:
    """``working``, for so many seconds; ``math.inf`` is for ever."""

    seconds: float
    message: str | None


@dataclass(frozen=True, slots=True)
class Ask:
    """``input_required``, until every question is answered."""

    requests: Mapping[str, JSONObject]
    refuse: Refuse | None = None


@dataclass(frozen=True, slots=True)
class Hint:
    """The task has another poll interval or another time-to-live from here on."""

    poll_interval_ms: float | Literal["same"] | None
    ttl_ms: float | Literal["same"] | None


@dataclass(frozen=True, slots=True)
class Complete:
    """The end: ``completed``."""

    result: Result
    message: str | None


@dataclass(frozen=True, slots=True)
class Fail:
    """The end: ``failed``."""

    code: int
    text: str
    data: Any
    message: str | None


@dataclass(frozen=True, slots=True)
class Abort:
    """The end: ``cancelled``."""

    message: str | None


@dataclass(frozen=True, slots=True)
class Vanish:
    """The end: the server forgets the task."""


@dataclass(frozen=True, slots=True)
class AskFirst:
    """A round of questions before there is a task."""

    requests: Mapping[str, JSONObject]


@dataclass(frozen=True, slots=True)
class Reply:
    """The end: a result without a task."""

    result: Result


_END: Final = (Complete, Fail, Abort, Vanish, Reply)

Step: TypeAlias = Work | Ask | Hint | Complete | Fail | Abort | Vanish | AskFirst | Reply


def work(seconds: float, message: str | None = None) -> Work:
    """Work for so many seconds; ``math.inf`` is until the task is cancelled or expires.

    Raises:
        ValueError: ``seconds`` is negative or no number.
    """
    if not seconds >= 0:
        raise ValueError(f"work() takes 0 seconds or more, got {seconds}")
    return Work(seconds, message)


@overload
def ask(key: str, request: JSONObject, /, *, refuse: Refuse | None = None) -> Ask: ...
@overload
def ask(requests: Mapping[str, JSONObject], /, *, refuse: Refuse | None = None) -> Ask: ...
def ask(
    first: str | Mapping[str, JSONObject],
    request: JSONObject | None = None,
    /,
    *,
    refuse: Refuse | None = None,
) -> Ask:
    """Ask one question by its key, or several at once, and wait until all are answered.

    :func:`form` makes the usual question. Sampling and roots requests are given as they are on the wire.

    Args:
        first: The key, or all questions by their keys.
        request: The question of the key.
        refuse: Called with the answers that have come, by key. If it returns a reason to refuse them, the
            reply is -32602 with these words, none of them is taken, and the questions stay.
    """
    return Ask(_requests(first, request), refuse)


@overload
def ask_first(key: str, request: JSONObject, /) -> AskFirst: ...
@overload
def ask_first(requests: Mapping[str, JSONObject], /) -> AskFirst: ...
def ask_first(first: str | Mapping[str, JSONObject], request: JSONObject | None = None, /) -> AskFirst:
    """Ask before there is a task (multi round-trip): the client calls again with its answers.

    ``ask_first({})`` asks nothing, and only has the client send ``requestState`` back.
    """
    return AskFirst(_requests(first, request))


def hint(
    *,
    poll_interval_ms: float | Literal["same"] | None = "same",
    ttl_ms: float | Literal["same"] | None = "same",
) -> Hint:
    """Change the hints of the task; ``None`` takes the poll interval, or the time-to-live, away."""
    return Hint(poll_interval_ms, ttl_ms)


def complete(result: Result, message: str | None = None) -> Complete:
    """End with a tool result. A function is given the answers by key, and returns the result."""
    return Complete(result, message)


def fail(code: int, text: str, data: Any = None, *, message: str | None = None) -> Fail:
    """End with a JSON-RPC error; ``message`` is the task's ``statusMessage``, if it is not the error's."""
    return Fail(code, text, data, message if message is not None else text)


def abort(message: str | None = None) -> Abort:
    """End in ``cancelled``, though the client has not asked for it."""
    return Abort(message)


def vanish() -> Vanish:
    """Forget the task: it is unknown (-32602) from here on."""
    return Vanish()


def reply(result: Result) -> Reply:
    """Answer ``tools/call`` with its result, without a task."""
    return Reply(result)


def form(message: str, /, **fields: str | JSONObject) -> JSONObject:
    """An elicitation that asks for all of these fields.

    Args:
        message: The words of the question.
        fields: By name, a JSON type such as ``"string"``, or a schema.
    """
    properties = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(fields)}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def check_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps as a tuple.

    Raises:
        ValueError: They have no end, go on after it, or use a key for two questions.
    """
    kinds = tuple(map(type, steps))
    ends = [isinstance(step, _END) or (isinstance(step, Work) and math.isinf(step.seconds)) for step in steps]
    if not ends or not ends[-1]:
        raise ValueError("the last step must be complete, fail, abort, vanish, reply or work(math.inf)")
    if any(ends[:-1]):
        raise ValueError(f"no step can follow {kinds[ends.index(True)].__name__.lower()}()")
    rounds = kinds.count(AskFirst)
    if AskFirst in kinds[rounds:]:
        raise ValueError("ask_first() stands before all other steps; ask() is for what comes later")
    if isinstance(steps[-1], Reply) and len(kinds) != rounds + 1:
        raise ValueError("reply() answers at once, so only ask_first() can stand before it")
    keys = [key for step in steps if isinstance(step, Ask) for key in step.requests]
    if len(set(keys)) != len(keys):
        raise ValueError(f"each key is used once in the life of a task, got {keys}")
    return tuple(steps)


def _requests(first: str | Mapping[str, JSONObject], request: JSONObject | None) -> Mapping[str, JSONObject]:
    if not isinstance(first, str):
        return dict(first)
    if request is None:
        raise TypeError(f"give the question of {first!r} too, such as form('Your name?', name='string')")
    return {first: request}
