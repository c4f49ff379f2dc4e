"""The ``session_data`` in the journal, by which another process can go on with a task. Pure.

It is JSON of our own after a mark, and opaque to the core.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple, TypeAlias

from pydantic import SkipValidation, TypeAdapter, ValidationError

from ...protocol import JSONObject, RequestId
from ..base import OTHER_VERSION

__all__ = ["OpenQuestion", "SentAnswer", "SessionData", "is_foreign"]

_Id: TypeAlias = Annotated[RequestId, SkipValidation]
_Object: TypeAlias = Annotated[JSONObject, SkipValidation]
"""As a server has sent them, also where pydantic would refuse them, such as half of a character."""


class OpenQuestion(NamedTuple):
    """A question of the server's that has no answer yet."""

    key: str
    request_id: _Id | None
    """The JSON-RPC ID to answer; ``None`` if the MCP session of the request has ended."""

    request: _Object
    """The question, ``{method, params}``. The server sends it once, so it is journaled whole."""


class SentAnswer(NamedTuple):
    """An answer that was sent, and that the task may not have used."""

    request_id: _Id
    content: _Object
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

    result_id: _Id | None = None
    """The JSON-RPC ID of the open ``tasks/result``, to which the server may deliver the next question."""

    progress_token: str | int | None = None
    """The token by which the server tells the progress of the task."""

    open: tuple[OpenQuestion, ...] = field(default=(), repr=False)
    """Oldest first."""

    sent: SentAnswer | None = field(default=None, repr=False)
    """The last answer, if it was not acknowledged, to be sent once more if the task still waits."""

    answered: Mapping[str, int] = field(default_factory=dict)
    """How many questions of each digest have been answered: the ordinal of the next question in its key."""

    def write(self) -> str:
        """The text. Equal data makes equal text."""
        return OTHER_VERSION + json.dumps(_DATA.dump_python(self, exclude_defaults=True))

    @staticmethod
    def read(text: str | None) -> SessionData:
        """The data in a text; empty data if the text is none that :meth:`write` has made."""
        try:
            return _DATA.validate_python(_object(text))
        except ValidationError:
            return SessionData()


_DATA: Final = TypeAdapter(SessionData)


def is_foreign(text: str | None) -> bool:
    """Whether a ``session_data`` is of another version, which gave a ``requestState`` of the server's."""
    return text is not None and not text.startswith(OTHER_VERSION)


def _object(text: str | None) -> JSONObject:
    try:
        raw = json.loads((text or "").removeprefix(OTHER_VERSION))
    except (ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}
