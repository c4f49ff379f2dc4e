"""One record per call, as the journal keeps it, and its state as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Final, TypeAlias, TypedDict

from pydantic import Field, TypeAdapter

from ..protocol import JSONObject
from ..protocol.task import Task
from ..protocol.text import digest, quote, shorten
from .running_time import find_ran_s
from .states import Completed, Failed, Finished, Gathering, Gone, LastFailure, Observing, State

__all__ = [
    "Origin",
    "Scope",
    "TaskRecord",
    "TaskReference",
    "digest_arguments",
    "dump_state",
    "load_state",
    "reference_of",
]


@dataclass(frozen=True, slots=True)
class Scope:
    """The endpoint and the principal of a record: it is never read or sent beyond them.

    Both are texts of any content and length, which a journal compares byte for byte.
    """

    endpoint: str
    """The URL of the server without credentials, or the name that the host has given it."""

    principal: str = ""
    """For whom the host acts there; empty if it acts for one only."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The process that made a call, for people to read. It may be long gone."""

    program: str
    """Its script or module without folders, such as ``worker.py`` or ``uvicorn``."""

    host: str
    """The name of its machine, as the machine has it."""

    pid: int


class TaskReference(TypedDict):
    """The names by which a task is found again: JSON, for a queue, a database row, another process.

    It holds the task ID, with which anybody who can reach the server can act on the task.
    """

    endpoint: str
    principal: str
    tool: str | None
    task_id: str | None
    record_id: str


def digest_arguments(arguments: Mapping[str, Any]) -> str:
    """The ``arguments_digest`` in records of calls with these arguments.

    Arguments that differ in the order of their members are equal, and so are ``1`` and ``1.0``.

    Raises:
        TypeError: They hold something that has no JSON form.
    """
    return digest(arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One call, as the journal knows it.

    Times are local wall clock, in seconds since the epoch. ``repr`` shortens the IDs.
    """

    record_id: str
    """Ours, and random. It tells the record from all others of a journal, of any scope."""

    scope: Scope
    tool: str | None
    """``None`` for a task attached by its bare ID."""

    arguments_digest: str | None = None
    """SHA-256 of the canonical arguments; the arguments themselves are not stored."""

    idempotency_key: str | None = None
    """A text of the host's; of a scope no two records have the same. ``None`` never meets another."""

    state: State = field(repr=False)
    """The state of the call. A journal keeps it as text, and need not look into it."""

    created_at: float
    """When the call was made; by it records are old or new."""

    updated_at: float
    """When the record was saved last."""

    delivered_at: float | None = None
    """When the outcome was handed to the host; ``None`` while it was not."""

    label: str | None = None
    """A short text for people, as given to the call. Two calls of one tool are told apart by it."""

    application: str | None = None
    """The name that the client which made the call had given itself; ``None`` is everybody's."""

    origin: Origin | None = None
    """The process that made the call; ``None`` if that is not known."""

    owner: str | None = None
    """The client that drives the call, or drove it when it died; ``None`` once it was released.

    Its name begins with that of its lease and a slash.
    """

    fence: int = 0
    """Grows by one whenever the record is taken, so that a late owner can be told from the present one."""

    @property
    def task(self) -> Task | None:
        """The latest snapshot, its result or error included; ``None`` before there is a task."""
        match self.state:
            case Observing():
                return self.state.task
            case Finished(task=Task() as task, outcome=Completed(result=result)):
                return task.model_copy(update={"result": result})
            case Finished(task=Task() as task, outcome=Failed() as failed):
                error = {"code": failed.code, "message": failed.message, "data": failed.data}
                return task.model_copy(update={"error": error})
            case Finished():
                return self.state.task
            case _:
                return None

    @property
    def result(self) -> JSONObject | None:
        """The server's result of a completed call as it came; ``None`` of every other call."""
        outcome = self.state.outcome if isinstance(self.state, Finished) else None
        return outcome.result if isinstance(outcome, Completed) else None

    @property
    def task_id(self) -> str | None:
        """The server's task ID. It is all that is needed to act on the task."""
        task = self.state.task if isinstance(self.state, Observing | Finished) else None
        return task.task_id if task else None

    @property
    def kept(self) -> bool:
        """Whether the journal stores it. A plain call without key and task has nothing to be found by."""
        return self.idempotency_key is not None or self.task_id is not None

    @property
    def status(self) -> str:
        """A task's status in the specification's words, else where the call stands.

        ``calling``, ``gathering`` and ``outcome_unknown`` before there is a task;
        ``not_found``, ``expired`` and ``violated`` for ends that are no status.
        """
        match self.state:
            case Observing():
                return self.state.task.status
            case Finished(outcome=outcome):
                return outcome.why if outcome.kind == "gone" else outcome.kind
            case _:
                return self.state.kind

    @property
    def finished(self) -> bool:
        """Whether the call is over, delivered or not."""
        return isinstance(self.state, Finished)

    @property
    def gone(self) -> bool:
        """Whether the server did not know the task when it was last asked."""
        return isinstance(self.state, Finished) and isinstance(self.state.outcome, Gone)

    @property
    def pending(self) -> bool:
        """Whether there is a task to observe, or an outcome that was not received yet."""
        return isinstance(self.state, Observing) or (self.finished and self.delivered_at is None)

    @property
    def took_s(self) -> float | None:
        """Seconds for which the task of a completed call ran, less the time in which it waited for answers.

        The server's times count where it gives them. ``None`` for every other call, for a result that is an
        error of the tool, and where it is not known.
        """
        outcome = self.state.outcome if isinstance(self.state, Finished) else None
        return outcome.took_s if isinstance(outcome, Completed) else None

    def ran_s(self, now: float) -> float:
        """Seconds for which the task has run by now, less the time in which it waited for answers.

        They stand still while it waits for one. 0 before there is a task; of a task that has ended, as
        :attr:`took_s`.

        Args:
            now: In seconds since the epoch.
        """
        return find_ran_s(self.state, now) if isinstance(self.state, Observing) else self.took_s or 0.0

    @property
    def last_failure(self) -> LastFailure | None:
        """Why the task is not seen, or has no slot to begin; ``None`` while requests for it get through.

        The journal is written when requests begin to fail, and when one gets through again. Of the last one,
        and of how many there were, only the client that drives the task knows the newest.
        """
        return self.state.failure if isinstance(self.state, Observing | Gathering) else None

    @property
    def expires_at(self) -> float | None:
        """When the time-to-live of an observed task has passed; ``None`` if it has none."""
        state = self.state
        if not isinstance(state, Observing) or state.ttl_ms is None:
            return None
        return state.received_at + state.ttl_ms / 1000

    @property
    def due_at(self) -> float | None:
        """When the task is polled next, as the journal knows it; ``None`` if it is not.

        Polls that show nothing new are not journaled. While a client drives the task, it may be in the past.
        """
        return self.state.due_at if isinstance(self.state, Observing) else None

    def __repr__(self) -> str:
        task_id = shorten(self.task_id) if self.task_id else None
        label = None if self.label is None else quote(self.label, self.task_id)
        status = quote(self.status, self.task_id)
        return (
            f"TaskRecord(record_id={shorten(self.record_id)!r}, tool={self.tool!r}, label={label!r}, "
            f"task_id={task_id!r}, status={status!r}, idempotency_key={self.idempotency_key!r})"
        )


def reference_of(record: TaskRecord, task_id: str | None = None) -> TaskReference:
    """The reference by which the call of a record is found again.

    ``task_id`` is that of a task which the record does not know yet.
    """
    return TaskReference(
        endpoint=record.scope.endpoint,
        principal=record.scope.principal,
        tool=record.tool,
        task_id=task_id or record.task_id,
        record_id=record.record_id,
    )


_TaggedState: TypeAlias = Annotated[State, Field(discriminator="kind")]


@cache
def _states() -> TypeAdapter[State]:
    """Built on use: building takes longer than the rest of this module, and an import needs none."""
    return TypeAdapter(_TaggedState)


def dump_state(state: State) -> str:
    """A state as JSON text in plain ASCII.

    ASCII, because a server's strings may hold lone surrogates, which no encoding can carry. Fields
    of a snapshot that the protocol does not name are left out: no decision needs them, and a server
    could fill the disk with them.

    Raises:
        TypeError: A value has no JSON form.
    """
    return _JSON.encode(state)


def _members(value: object) -> dict[str, Any]:
    """A snapshot or a dataclass of a state, as the members of a JSON object. Results are never copied."""
    if isinstance(value, Task):
        # Unset fields of a snapshot stay unset: an absent ttlMs and a null one differ.
        return {alias: getattr(value, name) for name, alias in _TASK_FIELDS if name in value.model_fields_set}
    kind: type[Any] = type(value)
    if is_dataclass(kind):
        return {name: getattr(value, name) for name in _field_names(kind)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


@cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    """Kept, since asking a dataclass for its fields takes longer than reading them."""
    return tuple(one.name for one in fields(kind))


_TASK_FIELDS: Final = [(name, field.alias or name) for name, field in Task.model_fields.items()]
_JSON: Final = json.JSONEncoder(separators=(",", ":"), default=_members)  # made once: dumps would make one


def load_state(text: str) -> State:
    """The state that :func:`dump_state` wrote, in this version or an earlier one.

    Raises:
        ValueError: The text is not a state.
    """
    raw: Any = json.loads(text)
    return _states().validate_python(raw, by_alias=True, by_name=False)
