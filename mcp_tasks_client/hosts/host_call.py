"""A ``tools/call`` of a host: read from a JSON-RPC message, and answered in the shape that it expects.

The shapes that a host can read depend on the version of the protocol that its own session negotiated. The
call itself is made in the version in which the server offers tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    CallToolRequestParams,
    ClientCapabilities,
)
from pydantic import ValidationError

from ..engine.idempotency import OnUnknown
from ..protocol import PROTOCOL_VERSION, JSONObject, RequestId
from ..protocol.replies import Reply, id_in, is_url_key, reply_fields
from ..protocol.text import quote
from ..sessions.base import ToolCall
from .call_options import read_options

__all__ = [
    "ASKED_BY",
    "HostCall",
    "as_event",
    "can_be_asked",
    "encode_message",
    "encode_reply",
    "is_current",
    "questions_for",
    "read_host_call",
    "read_message",
    "result_for",
]

_OWN_STATE: Final = "mcp-tasks-client:"
"""Begins the ``requestState`` of a question that a task of ours asks; the ID of its record follows."""

_OF_THE_PROTOCOL: Final = frozenset(
    {PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, "progressToken"}
)

ASKED_BY: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The client capability behind each kind of question."""


def can_be_asked(request: JSONObject, declared: Mapping[str, Any]) -> bool:
    """Whether a host that declares these client capabilities can answer a server's request.

    A malformed request raises nothing.
    """
    method, params = request.get("method"), request.get("params")
    capability = ASKED_BY.get(method) if isinstance(method, str) else None
    if capability is None or capability not in declared:
        return False
    # Without a mode in the capability, as in older clients, it is for forms only.
    by_url = isinstance(params, dict) and params.get("mode") == "url"
    return not by_url or "url" in declared[capability]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """One ``tools/call`` as a host has sent it."""

    request_id: RequestId
    tool_call: ToolCall
    key: Any = None
    """The idempotency key in ``_meta``, as it came, or else that of the block that the caller is in."""

    on_unknown: OnUnknown = "raise"
    """Whether an earlier call under the key, whose reply was lost, is an error or is sent again."""

    fault: str | None = None
    """Why a server would refuse the request; ``None`` if it would not."""

    is_current: bool
    """Whether the host's session speaks 2026-07-28."""

    capabilities: JSONObject | None = field(default=None, repr=False)
    """The host's capabilities in the request; ``None`` if it declares them elsewhere, or not at all."""

    client_info: JSONObject | None = None
    progress_token: RequestId | None = None
    reads_json: bool = True
    reads_events: bool = True
    record_id: str | None = None
    """The call that this one goes on with, such as one whose questions it answers; ``None`` begins one."""

    answers: Mapping[str, JSONObject] = field(default_factory=dict, repr=False)

    @property
    def declined(self) -> bool:
        """Whether the host was to visit a URL before the call, and has said no."""
        return any(is_url_key(key) and one.get("action") != "accept" for key, one in self.answers.items())


def read_message(content: bytes) -> JSONObject | None:
    """The JSON-RPC message in a request's body; ``None`` if there is none, or several."""
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and message.get("jsonrpc") == "2.0" else None


def is_current(params: JSONObject, version: str = "") -> bool:
    """Whether a request is one of a session at 2026-07-28 or later, by its params and its version header."""
    meta = params.get("_meta")
    said = meta.get(PROTOCOL_VERSION_META_KEY, version) if isinstance(meta, dict) else version
    return isinstance(said, str) and said >= PROTOCOL_VERSION  # versions are dates


def read_host_call(message: JSONObject, version: str, accept: str) -> HostCall | None:
    """The call in a JSON-RPC message; ``None`` if there is none, or if the host sees through its task itself.

    ``version`` and ``accept`` are the headers ``MCP-Protocol-Version`` and ``Accept``; empty if they are not
    there.
    """
    params = message.get("params")
    if message.get("method") != "tools/call" or not isinstance(params, dict):
        return None
    current, request_id = is_current(params, version), id_in(message, "id")
    name, arguments, meta = params.get("name"), params.get("arguments"), params.get("_meta")
    if request_id is None or not isinstance(name, str) or "task" in params:
        return None
    options = read_options(meta=meta if isinstance(meta, dict) else None)
    meta = options.meta
    capabilities, client_info = meta.get(CLIENT_CAPABILITIES_META_KEY), meta.get(CLIENT_INFO_META_KEY)
    state, answers = params.get("requestState"), params.get("inputResponses")
    state = state if isinstance(state, str) else None
    answers = answers if isinstance(answers, dict) else {}
    answers = {key: answer for key, answer in answers.items() if isinstance(answer, dict)}
    ours = state is not None and state.startswith(_OWN_STATE)
    return HostCall(
        request_id=request_id,
        tool_call=ToolCall(
            name=name,
            arguments=arguments if isinstance(arguments, dict) else {},
            meta={name: value for name, value in meta.items() if name not in _OF_THE_PROTOCOL},
            input_responses={} if ours else {k: one for k, one in answers.items() if not is_url_key(k)},
            request_state=None if ours else state,
            label=options.label,
        ),
        key=options.key,
        on_unknown=options.on_unknown,
        fault=_find_fault(params, capabilities),
        is_current=current,
        capabilities=capabilities if isinstance(capabilities, dict) else None,
        client_info=client_info if isinstance(client_info, dict) else None,
        progress_token=id_in(meta, "progressToken"),
        reads_json=any(kind in accept for kind in ("application/json", "application/*", "*/*")) or not accept,
        reads_events="text/event-stream" in accept,
        record_id=state.removeprefix(_OWN_STATE) if ours and state is not None else None,
        answers=answers,
    )


def _find_fault(params: JSONObject, capabilities: object) -> str | None:
    """The fault in the params of a call: where, and why. Answers are looked at with their questions."""
    answers = params.get("inputResponses") or {}
    if not (isinstance(answers, dict) and all(isinstance(answer, dict) for answer in answers.values())):
        return _fault("params.inputResponses", "Input should be an object of objects")
    try:
        CallToolRequestParams.model_validate({**params, "inputResponses": None}, by_name=False)
        if capabilities is not None:
            ClientCapabilities.model_validate(capabilities, by_name=False)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False, include_context=False)[0]
        what = "params" if error.title == CallToolRequestParams.__name__ else "the client's capabilities"
        return _fault(".".join([what, *map(str, problem["loc"])]), problem["msg"])
    return None


def _fault(where: str, why: str) -> str:
    return f"The request is not as MCP has it: {quote(where)}: {why}. Nothing was called."


def result_for(call: HostCall, result: JSONObject) -> JSONObject:
    """A tool's result as the result of the host's request, without what the host's version does not have."""
    if call.is_current:
        return {"resultType": "complete", **result}
    result = {name: value for name, value in result.items() if name != "resultType"}
    if not isinstance(result.get("structuredContent", {}), dict):
        del result["structuredContent"]  # was an object before 2026-07-28; the content says the same
    return result


def questions_for(
    questions: Mapping[str, JSONObject], *, state: str | None, record_id: str | None
) -> JSONObject:
    """The questions of a call as the result of the host's request, if its session speaks 2026-07-28.

    Args:
        questions: The server's requests, by key.
        state: The server's own ``requestState``, where the host's next call makes the call anew.
        record_id: Of the journaled call with which the host's next call goes on; ``None`` if there is none.
    """
    if record_id is not None:
        state = _OWN_STATE + record_id
    result: JSONObject = {"resultType": "input_required", "inputRequests": dict(questions)}
    if state is not None:
        result["requestState"] = state
    return result


def encode_reply(request_id: RequestId, reply: Reply) -> bytes:
    """A result or an error as the reply to the host's request."""
    return encode_message({"jsonrpc": "2.0", "id": request_id, **reply_fields(reply)})


def encode_message(message: JSONObject) -> bytes:
    """A JSON-RPC message in ASCII, so that a lone surrogate survives it."""
    return json.dumps(message, separators=(",", ":")).encode("ascii")


def as_event(message: bytes) -> bytes:
    """A message as a server-sent event."""
    return b"event: message\ndata: " + message + b"\n\n"
