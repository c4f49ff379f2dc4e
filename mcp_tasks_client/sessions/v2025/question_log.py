"""The questions of one task: the request that asks each, and whether it has an answer. Pure.

A question has a key that lasts: a digest of its text, and its ordinal among the questions that read the same.
Requests only have JSON-RPC IDs, which differ when the server sends a question again, and which some servers
reuse at once (mcp 1.30 takes an address in memory for one). So the log decides whether a request is

- the same question once more: it has the ID of an open one, or reads like an open one whose stream has ended
  and to which no answer was sent;
- a new question: anything else, even if it reads like one that is answered.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ...machine.input_requests import MAX_OPEN
from ...protocol import JSONObject, RequestId
from ...protocol.text import digest
from .session_data import OpenQuestion, SentAnswer, SessionData

__all__ = ["QuestionLog"]

_MAX_BYTES: Final = 1024 * 1024
"""JSON of all open questions of one task, which are journaled."""

_DIGEST_LENGTH: Final = 16
_PATIENCE: Final = 2
"""Snapshots that show the task still waiting before an answer is sent once more. The first may be older."""


@dataclass(slots=True)
class _Entry:
    digest: str
    ordinal: int
    request_id: RequestId | None
    request: JSONObject = field(repr=False)
    size: int = field(init=False)
    stream_lost: bool = False
    """Whether the stream that brought the request has ended: the server may send the question again."""

    answer: Literal["none", "is being sent", "may have arrived"] = "none"
    """From the first send on, a request of another ID is another question, even if it reads the same."""

    def __post_init__(self) -> None:
        self.size = len(json.dumps(self.request))

    @property
    def key(self) -> str:
        return f"{self.digest}.{self.ordinal}"


class QuestionLog:
    """The questions that a server has asked on behalf of one task, with their data in the journal."""

    def __init__(self, data: SessionData) -> None:
        self._open = [
            _Entry(*_split(key), request_id, request, stream_lost=True)
            for key, request_id, request in data.open
        ]
        self._answered = dict(data.answered)
        self._unused = data.sent
        self._looks = 0

    def __len__(self) -> int:
        return len(self._open)

    def hear(self, request_id: RequestId, request: JSONObject) -> Literal["new", "known", "too many"]:
        """Take a request.

        Args:
            request_id: Its JSON-RPC ID.
            request: The question, without the parts that differ each time that it is sent.

        Returns:
            ``new`` if the log has changed; ``too many`` if it has not, because the task asks too much.
        """
        name = digest(request)[:_DIGEST_LENGTH]
        for entry in self._behind(request_id):
            if entry.digest == name:
                entry.stream_lost = False
                return "known"
            self._open.remove(entry)  # the server has reused the ID
        for entry in self._open:
            if entry.digest == name and entry.stream_lost and entry.answer == "none":
                entry.request_id, entry.stream_lost = request_id, False
                return "new"
        taken = {entry.ordinal for entry in self._open if entry.digest == name}
        ordinal = self._answered.get(name, 0)
        while ordinal in taken:
            ordinal += 1
        new = _Entry(name, ordinal, request_id, request)
        if len(self._open) >= MAX_OPEN or sum(entry.size for entry in (new, *self._open)) > _MAX_BYTES:
            return "too many"
        self._open.append(new)
        return "new"

    def withdraw(self, request_id: RequestId) -> bool:
        """Drop a question that the server has cancelled. Returns whether there was one."""
        withdrawn = self._behind(request_id)
        for entry in withdrawn:
            self._open.remove(entry)
        return bool(withdrawn)

    def lose_stream(self) -> None:
        """Note that the stream of the requests has ended.

        The server may send them again, or still take an answer.
        """
        for entry in self._open:
            entry.stream_lost = True

    def lose_session(self) -> None:
        """Note that the MCP session has ended. A question can be answered when the server sends it again."""
        self._unused = None
        for entry in self._open:
            entry.stream_lost, entry.request_id, entry.answer = True, None, "none"

    def clear(self) -> None:
        """Drop every question: the task is over or cancelled."""
        self._open.clear()
        self._unused = None

    def show(self) -> JSONObject:
        """The oldest question that can be answered, by its key; empty if there is none.

        One at a time, because the engine sends answers only all together, and each request has a time limit.
        """
        return next(({entry.key: entry.request} for entry in self._open if entry.request_id is not None), {})

    def dump(self, data: SessionData) -> SessionData:
        """The data with the questions and answers as the journal keeps them."""
        questions = (OpenQuestion(entry.key, entry.request_id, entry.request) for entry in self._open)
        sent = None if self._unused is None or self._unused.acknowledged else self._unused
        return replace(data, open=tuple(questions), answered=dict(self._answered), sent=sent)

    # ── answers ───────────────────────────────────────────────────────────────────────────────

    def begin_answer(self, key: str) -> RequestId | None:
        """Note that an answer leaves now. Returns the request's ID; ``None`` if it cannot be answered."""
        entry = self._named(key)
        if entry is None or entry.request_id is None:
            return None
        entry.answer = "is being sent"
        return entry.request_id

    def finish_answer(self, key: str, content: JSONObject, *, acknowledged: bool) -> None:
        """Note that the answer to the question under a key was sent.

        ``acknowledged``: the server has it. Another process does not send such an answer once more, since
        mcp 1.30 may have asked the next question under the same ID.
        """
        entry = self._named(key)
        if entry is None:
            return  # withdrawn meanwhile
        self._close(entry)
        if entry.request_id is not None:
            self._unused, self._looks = SentAnswer(entry.request_id, content, acknowledged), 0

    def abort_answer(self, key: str) -> None:
        """Note that the answer may not have arrived. It can be sent again."""
        entry = self._named(key)
        if entry is not None:
            entry.answer = "may have arrived"

    def was_answered(self, key: str) -> bool:
        """Whether a question is not open, and was answered before."""
        name, ordinal = _split(key)
        return ordinal < self._answered.get(name, 0) and self._named(key) is None

    def look(self, *, waiting: bool) -> SentAnswer | None:
        """Note a snapshot of a task, which waits for input or does not.

        Returns:
            The answer that is to be sent once more, if it has had no effect.
        """
        answer = self._unused
        if answer is None or not waiting:
            self._unused = None
            return None
        if self._open:
            return None  # the task may wait for this one
        self._looks += 1
        return answer if self._looks >= _PATIENCE else None

    def finish_once_more(self, answer: SentAnswer) -> None:
        """Note that an answer was sent once more. Until then each look asks for it again."""
        if self._unused is answer:
            self._unused = None

    def _close(self, entry: _Entry) -> None:
        self._open.remove(entry)
        self._answered[entry.digest] = max(self._answered.get(entry.digest, 0), entry.ordinal + 1)

    def _behind(self, request_id: RequestId) -> list[_Entry]:
        """The open question with that ID, whose answer is not on its way."""
        return [
            one for one in self._open if _same(one.request_id, request_id) and one.answer != "is being sent"
        ]

    def _named(self, key: str) -> _Entry | None:
        return next((entry for entry in self._open if entry.key == key), None)


def _split(key: str) -> tuple[str, int]:
    name, _, ordinal = key.partition(".")
    return name, int(ordinal) if ordinal.isdecimal() else 0


def _same(one: RequestId | None, other: RequestId) -> bool:
    return one == other and isinstance(one, str) == isinstance(other, str)
