"""One request of a host: whose it is, and the ways back to the host while it is being served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    CreateMessageRequest,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ListRootsRequest,
    ProgressNotification,
    ProgressNotificationParams,
)
from pydantic import BaseModel

from .introspection import Context

__all__ = ["Host", "HostRefusedError", "HostRequest", "Prompt", "Reply", "ask_by_reply"]

_CURRENT: Final = "2026-07-28"
"""From this version on, a server asks a host by the reply to the host's own request."""


_OWN_STATE: Final = "mcp-tasks-bridge:"
"""Begins the ``requestState`` of a question that is put to a host; the reference of the call follows."""


class HostRefusedError(Exception):
    """The host has answered a question with an error, or is gone."""


@dataclass(eq=False, slots=True)
class Prompt:
    """A question that a host is to be asked."""

    question_id: str
    request: ElicitRequest | CreateMessageRequest | ListRootsRequest

    @property
    def capability(self) -> str:
        """The capability of hosts that can be asked: the first word of the method."""
        return self.request.method.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Host:
    """A host as it has introduced itself."""

    name: str
    capabilities: Mapping[str, Any] = field(repr=False)
    protocol_version: str

    @property
    def is_current(self) -> bool:
        """True at 2026-07-28 and later."""
        return self.protocol_version >= _CURRENT

    def can_be_asked(self, prompt: Prompt) -> bool:
        """True if a host that declares these capabilities, at this version, understands the question."""
        declared = self.capabilities.get(prompt.capability)
        if declared is None:
            return False
        match prompt.request.params:
            case ElicitRequestURLParams():
                return "url" in declared
            case ElicitRequestFormParams() if "url" in declared and "form" not in declared:
                return False  # a host that names no mode has forms alone
            case ElicitRequestFormParams(requested_schema=schema) if not self.is_current:
                return _is_expressible(schema, self.protocol_version)
            case _:
                return True


def _is_expressible(schema: Any, version: str) -> bool:
    """True if a form has only fields that a version of the protocol has.

    2025-06-18 has texts, numbers, booleans and one choice of several texts. 2025-11-25 adds titled choices
    and several choices. Source: the schemas of these versions, ``PrimitiveSchemaDefinition``.
    """
    fields = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(fields, Mapping):
        return False
    for one in fields.values():
        if not isinstance(one, Mapping):
            return False
        kind = one.get("type")
        is_several = kind == "array" and version >= "2025-11-25"
        if not (kind in ("string", "number", "integer", "boolean") or is_several):
            return False
        if "oneOf" in one and version < "2025-11-25":
            return False
    return True


class Reply:
    """The reply to one request: has it left for the host?"""

    def __init__(self) -> None:
        self._told: list[Callable[[bool], None]] = []
        self._is_settled = False

    def when_settled(self, tell: Callable[[bool], None]) -> None:
        """Call a function once: with True when the reply has left, or with False if it does not leave.

        With False at once, if it is settled: the request has ended before this was said.
        """
        if self._is_settled:
            tell(False)
        else:
            self._told.append(tell)

    def settle(self, has_left: bool) -> None:
        """Note that the reply has left, or that none leaves. Only the first time counts."""
        self._is_settled, told, self._told = True, self._told, []
        for one in told:
            one(has_left)


class HostRequest:
    """A request that is being served.

    Attributes:
        host: Whose it is.
        reply: To it.
    """

    def __init__(self, context: Context, host: Host, reply: Reply) -> None:
        self.host = host
        self.reply = reply
        self.params: Mapping[str, Any] = context.params or {}
        self.meta: Mapping[str, Any] = self.params.get("_meta") or {}
        self._context = context
        self._asking: set[anyio.CancelScope] = set()
        self._has_ended = False

    @property
    def continued(self) -> str | None:
        """The reference of the call for which it brings answers, which :func:`ask_by_reply` has asked for."""
        state = self.params.get("requestState")
        if not (isinstance(state, str) and state.startswith(_OWN_STATE)):
            return None
        return state.removeprefix(_OWN_STATE)

    @property
    def answers(self) -> Mapping[str, Any]:
        """The answers that it brings, by the ID of the question."""
        answers = self.params.get("inputResponses")
        return answers if isinstance(answers, dict) else {}

    @property
    def progress_token(self) -> str | int | None:
        """The progress token of the host; ``None`` if it wants no progress."""
        token = self.meta.get("progressToken")
        return token if isinstance(token, str | int) else None

    def can_carry(self, prompt: Prompt) -> bool:
        """True if the reply to this request can ask the host a question."""
        return self.host.is_current and self.host.can_be_asked(prompt)

    async def tell_progress(
        self, token: str | int, progress: float, total: float | None, message: str | None
    ) -> None:
        """Send a progress notification under the progress token of the host."""
        params = ProgressNotificationParams(
            progress_token=token, progress=progress, total=total, message=message
        )
        await self._context.session.send_notification(
            ProgressNotification(params=params), related_request_id=self._context.request_id
        )

    async def ask(self, prompt: Prompt) -> dict[str, Any]:
        """Ask the host, as a part of this request. Below 2026-07-28 only.

        Raises:
            HostRefusedError: It has answered with an error. Or the request has ended.
        """
        with anyio.CancelScope() as scope:
            self._asking.add(scope)
            try:
                if not self._has_ended:
                    raw = await self._context.session.send_request(
                        prompt.request,
                        _Raw,
                        metadata=ServerMessageMetadata(related_request_id=self._context.request_id),
                    )
                    return raw.model_dump()
            except (MCPError, ValueError) as error:
                raise HostRefusedError(str(error)) from error
            finally:
                self._asking.discard(scope)
        raise HostRefusedError("the request of the host has ended")

    def end(self) -> None:
        """Note that the request was answered or given up. The host is asked nothing more as a part of it."""
        self._has_ended = True
        for scope in self._asking:
            scope.cancel()


def ask_by_reply(reference: str, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The reply that asks a host of 2026-07-28, which sends its request again with the answers.

    Args:
        reference: Of the call, as :attr:`HostRequest.continued` gives it back.
        prompts: To ask.
    """
    requests = {
        one.question_id: one.request.model_dump(mode="json", by_alias=True, exclude_none=True)
        for one in prompts
    }
    return {
        "resultType": "input_required",
        "inputRequests": requests,
        "requestState": _OWN_STATE + reference,
    }


class _Raw(BaseModel, extra="allow"):
    """A result of the host as it came."""
