"""What is known of a round when it is over: what the hosts wrote down, and what reached the server.

All times are seconds of ``time.monotonic()``, which Linux and macOS share between processes.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

__all__ = [
    "LIFE_HEADER",
    "POLL_INTERVAL_MS",
    "SENT_HEADER",
    "Evidence",
    "Life",
    "Line",
    "Log",
    "Request",
    "What",
    "read_log",
]

LIFE_HEADER = "x-life"
"""Says in each request which process sent it."""

SENT_HEADER = "x-sent-at"
"""Says when it was handed to the connection, where the host's HTTP client tells."""

POLL_INTERVAL_MS = 70
"""What the servers ask for, but for what is polled seldom."""

What: TypeAlias = Literal[
    "begun",  # a call is about to be made
    "task",  # the host saw something of a call's task: its first snapshot, or its progress
    "asked",  # the callback was called; ``committed``: the journal held an answer to it
    "answered",  # it is about to return
    "withdrawn",  # it was cancelled
    "put off",  # it is about to leave the question to others
    "giving",  # somebody outside is about to answer
    "given",  # that was told to count
    "came second",  # that was told that there is an answer
    "came late",  # that was told that nobody asks any more
    "shown again",  # a question was listed after its answer had been told to count
    "resuming",  # resume() is about to be called
    "resumed",  # it has returned
    "delivered",  # a result came: ``by`` awaiting the "call", by its "key", by "resume", or as "kept"
    "acknowledged",  # the journal has noted that
    "looked",  # a look for calls has taken some
    "stopping",  # a process is about to suspend itself, in a look for calls; ``text`` says where
    "given up",  # a call without a key was cancelled
    "reached",  # a call is held at a named stop; ``text`` says at which
    "unknown",  # an OutcomeUnknownError came
    "resend",  # a call with on_unknown="resend" is about to be made
    "lost",  # a SessionError came for a call without a key
    "error",  # any other error
    "bridge",  # a bridge was started; ``text`` has its number and its process
    "bridge gone",  # it has ended before its reply
    "broken off",  # its last line was half a line
    "promised",  # an answer in between; ``text``: its reference; ``committed``: it said that it stays good
    "gone",  # a reference was not known any more
    "listed",  # a reference was listed as one of the host's
    "left",  # the journal holds something unfinished, or undelivered, after everything was brought home
    "done",  # the last process is through
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that a host got to know."""

    at: float
    what: What
    intent: str | None = None
    """Which call it is about: the idempotency key, or a name of its own."""

    keyed: bool = False
    question: str | None = None
    """The words of a question, which begin with the intent."""

    question_id: str | None = None
    """What the inbox calls a question."""

    client: int | None = None
    """Which client of the process asks."""

    key: str | None = None
    """The server's key of a question."""

    task_id: str | None = None
    committed: bool = False
    by: Literal["call", "key", "resume", "kept"] | None = None
    made: str | None = None
    """Tells one result from all others, also of the same call."""

    text: str = ""


class Log:
    """A host's own log: each line is one write, and on the disk when it returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: What, **fields: Any) -> None:
        """Append a line, with the time, and then tell our parent of it."""
        line = {"at": time.monotonic(), "what": what, **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")
        os.fsync(self._file)
        print(what, flush=True)


def read_log(path: Path) -> list[Line]:
    """The lines of a log; none if the process did not live long enough to begin one."""
    if not path.exists():
        return []
    return [Line(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as the server's ledger has it."""

    method: str
    at: float
    life: int | None = None
    sent_at: float | None = None
    """When the client handed it to its connection; ``None`` if it does not say so."""

    answered_at: float | None = None
    """When the whole reply was handed to the connection; ``None`` if it was not."""

    intent: str | None = None
    """Of a ``tools/call``."""

    request_state: str | None = None
    task_id: str | None = None
    """That it names, or that its reply created."""

    answers: dict[str, Any] = field(default_factory=dict)
    """Its ``inputResponses``."""

    kind: str | None = None
    """``resultType`` of the reply; ``error`` if it was one."""

    poll_interval_ms: float | None = None
    made: str | None = None
    """Of the result that the reply holds."""

    @property
    def well_answered(self) -> bool:
        """Whether a result was handed to the connection."""
        return self.answered_at is not None and self.kind != "error"

    @property
    def subject(self) -> str | None:
        """What its answers belong to."""
        return self.task_id if self.method == "tasks/update" else self.request_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One client process."""

    number: int
    lines: list[Line] = field(default_factory=list)
    killed_at: float | None = None
    """Just before the signal was sent; ``None`` if it ended by itself, as only the last one does."""

    trouble: str = ""
    """How it ended, if not in either way."""

    def alive_at(self, at: float) -> bool:
        """Whether it had not been killed by then."""
        return at < self.ended_at

    @property
    def ended_at(self) -> float:
        """When it was killed; infinity if it was not."""
        return math.inf if self.killed_at is None else self.killed_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One round: some processes, one after the other and at the same time, on one journal."""

    scenario: str
    lives: list[Life]
    requests: list[Request]
    others: list[Life] = field(default_factory=list)
    """The processes that answer from outside. They are not killed."""

    complaints: list[str] = field(default_factory=list)
    """What the server holds against its clients by itself."""

    def save(self, path: Path) -> None:
        """Write it down, for whoever wants to see what a verdict stands on."""
        from dataclasses import asdict

        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
