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
from .call_options import key_of, read_options

__all__ = [
    "HostCall",
    "as_event",
    "encode_message",
    "encode_reply",
    "is_current",
    "questions_for",
    "read_host_call",
    "read_message",
    "refuse_keyed",
    "refuse_unread",
    "result_for",
]

_OWN_STATE: Final = "mcp-tasks-client:"
"""Begins the ``requestState`` of our own questions to a host; the ID of the call's record follows."""

_OF_THE_PROTOCOL: Final = frozenset(
    {PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, "progressToken"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """One ``tools/call`` as a host has sent it."""

    request_id: RequestId
    """As the host sent it. In a call that is refused for its key it may be any JSON."""

    tool_call: ToolCall
    key: Any = None
    """The idempotency key as in ``_meta``, not checked, or else that of the block around the call."""

    on_unknown: OnUnknown = "raise"
    """Whether an earlier call under the key, whose reply was lost, is an error or is sent again."""

    fault: str | None = None
    """The fault for which a server would refuse the request, or its key cannot be kept; ``None`` if none."""

    is_current: bool
    """Whether the host's session speaks 2026-07-28."""

    capabilities: JSONObject | None = field(default=None, repr=False)
    """The host's capabilities in the request; ``None`` if it declares them elsewhere, or not at all."""

    client_info: JSONObject | None = None
    progress_token: RequestId | None = None
    accept: str = ""
    """The header of that name; empty if there is none."""

    record_id: str | None = None
    """The record of the call that this request continues, mostly with answers; ``None`` begins a call."""

    answers: Mapping[str, JSONObject] = field(default_factory=dict, repr=False)

    @property
    def reads_json(self) -> bool:
        """Whether the host reads a reply in JSON."""
        kinds = ("application/json", "application/*", "*/*")
        return not self.accept or any(kind in self.accept for kind in kinds)

    @property
    def reads_events(self) -> bool:
        """Whether the host reads a reply that is an event stream."""
        return "text/event-stream" in self.accept

    @property
    def loses_key(self) -> bool:
        """True if the call is refused, since it has a fault and its key could not protect it."""
        return self.key is not None and self.fault is not None

    @property
    def declined(self) -> bool:
        """True if the host has declined to visit a URL that the call needs."""
        return any(is_url_key(key) and one.get("action") != "accept" for key, one in self.answers.items())


def read_message(content: bytes) -> JSONObject | None:
    """The JSON-RPC message in a request's body; ``None`` if there is none, or several."""
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and message.get("jsonrpc") == "2.0" else None


def is_current(params: JSONObject, version: str = "") -> bool:
    """True if a request's session is at 2026-07-28 or later, by its params and its version header."""
    meta = params.get("_meta")
    said = meta.get(PROTOCOL_VERSION_META_KEY, version) if isinstance(meta, dict) else version
    return isinstance(said, str) and said >= PROTOCOL_VERSION  # versions are dates


def read_host_call(message: JSONObject, version: str, accept: str) -> HostCall | None:
    """The call in a JSON-RPC message; ``None`` if it has none, or if the host follows the task itself.

    A call with an idempotency key that cannot be taken has a ``fault``, by which it is refused.

    ``version`` and ``accept`` are the headers ``MCP-Protocol-Version`` and ``Accept``; empty if they are not
    there.
    """
    params, request_id = message.get("params"), id_in(message, "id")
    if message.get("method") != "tools/call":
        return None
    if not isinstance(params, dict) or not isinstance(params.get("name"), str):
        return refuse_keyed(message, accept, "its params name no tool")
    if "task" in params:
        return refuse_keyed(message, accept, "its params ask for a task that the host follows itself")
    if request_id is None:
        return refuse_keyed(message, accept, "its id is neither a text nor an integer")
    current = is_current(params, version)
    name, arguments, meta = params["name"], params.get("arguments"), params.get("_meta")
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
        accept=accept,
        record_id=state.removeprefix(_OWN_STATE) if ours and state is not None else None,
        answers=answers,
    )


def refuse_keyed(said: object, accept: str, why: str) -> HostCall | None:
    """The first ``tools/call`` with a key in JSON that is not taken, with its fault; ``None`` without one.

    The host's own request would run the tool once for each repetition, despite the key.
    """
    for one in said if isinstance(said, list) else [said]:
        if not isinstance(one, dict) or one.get("method") != "tools/call":
            continue
        key = key_of(one.get("params"))
        if key is not None:
            return HostCall(
                request_id=one.get("id") if one is said else None,  # type: ignore[arg-type]  # any JSON
                tool_call=ToolCall(name=""),
                key=key,
                fault=f"A call with an idempotency key was not made, since the key cannot be kept: {why}.",
                is_current=True,
                accept=accept,
            )
    return None


def refuse_unread(content: bytes, accept: str, *, is_json: bool) -> HostCall | None:
    """As :func:`refuse_keyed`, for a request's body that is not one JSON-RPC message declared as JSON.

    ``is_json`` says whether the request declares JSON.
    """
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return None
    why = "its body is not one JSON-RPC 2.0 message" if is_json else "its body is not declared as JSON"
    return refuse_keyed(said, accept, why)


def _find_fault(params: JSONObject, capabilities: object) -> str | None:
    """The first fault in the params of a call, for the host. Answers are checked with their questions."""
    answers = params.get("inputResponses") or {}
    if not (isinstance(answers, dict) and all(isinstance(answer, dict) for answer in answers.values())):
        return _fault("params.inputResponses", "Input should be an object of objects")
    try:
        CallToolRequestParams.model_validate({**params, "inputResponses": None}, by_name=False)
        if capabilities is not None:
            ClientCapabilities.model_validate(capabilities, by_name=False)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False, include_context=False)[0]
        part = "params" if error.title == CallToolRequestParams.__name__ else "the client's capabilities"
        return _fault(".".join([part, *map(str, problem["loc"])]), problem["msg"])
    return None


def _fault(where: str, why: str) -> str:
    return f"The request is not as MCP has it: {quote(where)}: {why}. Nothing was called."


def result_for(call: HostCall, result: JSONObject) -> JSONObject:
    """A tool's result as the result of the host's request, without fields that the host's version lacks."""
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
        state: The server's own ``requestState``, for a call that the host's next call makes anew.
        record_id: The journaled call that the host's next call continues; ``None`` if there is none.
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
