"""What the journal keeps so that another process can go on with a task: its ``session_data``. Pure.

It is JSON of our own after a mark, and opaque to the core.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ..protocol import JSONObject, RequestId
from ..sessions.base import OTHER_VERSION

__all__ = ["OpenQuestion", "SentAnswer", "SessionData", "is_foreign"]


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question of the server's that has no answer yet."""

    key: str
    request_id: RequestId | None
    """The JSON-RPC ID to answer; ``None`` if the MCP session of the request has ended."""

    request: JSONObject = field(repr=False)
    """The question, ``{method, params}``. The server sends it once, so it is journaled whole."""


@dataclass(frozen=True, slots=True)
class SentAnswer:
    """An answer that was sent, and that the task may not have used."""

    request_id: RequestId
    content: JSONObject = field(repr=False)
    acknowledged: bool = False
    """Whether the server has said that it came. Such an answer is not journaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionData:
    """Everything that must survive the process, beyond the task ID."""

    owner: str | None = None
    """Names the client that wrote this. Another one takes the task over, see ``result_id``."""

    session_id: str | None = field(default=None, repr=False)
    """The MCP session of the task."""

    cancellable: bool = True
    """Whether the server declares ``tasks.cancel``."""

    result_id: RequestId | None = None
    """The JSON-RPC ID of the open ``tasks/result``, to which the server may deliver the next question."""

    event_id: str | None = None
    """The last event ID of that request's stream when a question of the stream was last journaled."""

    progress_token: str | int | None = None
    """The token by which the server tells the progress of the task."""

    open: tuple[OpenQuestion, ...] = ()
    """Oldest first."""

    sent: SentAnswer | None = None
    """The last answer, if nobody told that it arrived, to be sent once more if the task still waits."""

    answered: Mapping[str, int] = field(default_factory=dict)
    """How many questions of each digest have been answered: the ordinal of the next question in its key."""

    def write(self) -> str:
        """The text. Equal data makes equal text."""
        questions = [[one.key, one.request_id, one.request] for one in self.open]
        named = {
            "owner": self.owner,
            "session_id": self.session_id,
            "not_cancellable": None if self.cancellable else True,
            "result_id": self.result_id,
            "event_id": self.event_id,
            "progress_token": self.progress_token,
            "open": questions or None,
            "sent": None if self.sent is None else [self.sent.request_id, self.sent.content],
            "answered": dict(self.answered) or None,
        }
        # An ID may be 0.
        return OTHER_VERSION + json.dumps({name: value for name, value in named.items() if value is not None})

    @classmethod
    def read(cls, text: str | None) -> Self:
        """The data in a text. What is missing or of another type is left out.

        The text of version 0.1 holds at least ``session_id``, and the open request as ``retrieval``.
        """
        raw = _object(text)
        answered = raw.get("answered")
        return cls(
            owner=_text(raw.get("owner")),
            session_id=_text(raw.get("session_id")),
            cancellable=raw.get("not_cancellable") is not True,
            result_id=_request_id(raw.get("result_id", raw.get("retrieval"))),
            event_id=_text(raw.get("event_id")),
            progress_token=_token(raw.get("progress_token", raw.get("progress"))),
            open=tuple(_questions(raw.get("open"))),
            sent=_sent(raw.get("sent")),
            answered=_counts(answered) if isinstance(answered, dict) else {},
        )


def is_foreign(text: str | None) -> bool:
    """Whether a ``session_data`` is of another version, which gave a ``requestState`` of the server's."""
    return text is not None and not text.startswith(OTHER_VERSION) and "session_id" not in _object(text)


def _object(text: str | None) -> JSONObject:
    try:
        raw = json.loads((text or "").removeprefix(OTHER_VERSION))
    except (ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


_QUESTION_PARTS: Final = 3
_SENT_PARTS: Final = 2


def _questions(raw: object) -> list[OpenQuestion]:
    found = []
    for one in raw if isinstance(raw, list) else ():
        if isinstance(one, list) and len(one) == _QUESTION_PARTS:
            key, request_id, request = one
            if isinstance(key, str) and isinstance(request, dict):
                found.append(OpenQuestion(key, _request_id(request_id), request))
    return found


def _sent(raw: object) -> SentAnswer | None:
    request_id, content = raw if isinstance(raw, list) and len(raw) == _SENT_PARTS else (None, None)
    known = _request_id(request_id)
    return SentAnswer(known, content) if known is not None and isinstance(content, dict) else None


def _counts(raw: Mapping[str, Any]) -> dict[str, int]:
    return {name: count for name, count in raw.items() if isinstance(count, int)}


def _text(raw: object) -> str | None:
    return raw if isinstance(raw, str) else None


def _request_id(raw: object) -> RequestId | None:
    return raw if isinstance(raw, str | int | float) and not isinstance(raw, bool) else None


def _token(raw: object) -> str | int | None:
    return raw if isinstance(raw, str | int) and not isinstance(raw, bool) else None
