"""A model on the loopback that plays turns, over both of the interfaces that agents know.

``/v1/responses`` is OpenAI's newer interface, ``/v1/chat/completions`` the older one. Replies are streamed.
A request has the whole conversation, and the tool results in it say which turn comes next. So nothing is kept
between requests, and a repeated request gets the same reply.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias

from .turns import Turn, next_turn

__all__ = ["LAST_WORDS", "ScriptedModel", "scripted_model"]

LAST_WORDS: Final = "all turns are played"
"""What the model says when no turn is left."""

Named: TypeAlias = tuple[str, str]
"""A tool as the host offers it: its name, and the namespace that it is in, or nothing."""


@dataclass
class ScriptedModel:
    """The model.

    Attributes:
        turns: What it does, in this order.
        url: The address of its interfaces, with ``/v1``.
        shown: The tool results that it was shown, oldest first, each as its text.
        requests: The bodies of all requests, oldest first.
        missing: The tools that it was to call and was not offered.
    """

    turns: Sequence[Turn]
    url: str = ""
    shown: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def choose(self, offered: Sequence[Named], shown: list[str]) -> tuple[Named, Turn] | None:
        """The tool to call next and its turn; ``None`` if there is only something to say."""
        if len(shown) > len(self.shown):
            self.shown = shown
        turn = next_turn(self.turns, shown)
        if turn is None:
            return None
        # A host puts the name of the server before that of the tool, or makes a namespace of it.
        for named in offered:
            if named[0] == turn.tool or named[0].endswith(f"_{turn.tool}"):
                return named, turn
        self.missing.append(turn.tool)
        return None


class Handler(BaseHTTPRequestHandler):
    """Of one model, which :func:`scripted_model` puts into a subclass."""

    model: ScriptedModel

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.model.requests.append(body)
        chat = self.path.endswith("/chat/completions")
        events = list(chat_events(self.model, body) if chat else response_events(self.model, body))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in events:
            named = "" if chat else f"event: {event['type']}\n"
            self.wfile.write(f"{named}data: {json.dumps(event)}\n\n".encode())
        if chat:
            self.wfile.write(b"data: [DONE]\n\n")

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing goes to stderr, which is pytest's."""


def response_events(model: ScriptedModel, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The stream of ``/v1/responses``."""
    offered = [named for tool in body.get("tools", []) for named in names_of(tool)]
    shown = [text_of(item["output"]) for item in body["input"] if item.get("type") == "function_call_output"]
    turn = model.choose(offered, shown)
    reply_id = f"resp_{uuid.uuid4().hex}"
    yield {"type": "response.created", "response": {"id": reply_id}}
    item: dict[str, Any]
    if turn is None:
        content = [{"type": "output_text", "text": LAST_WORDS}]
        item = {"type": "message", "role": "assistant", "id": f"msg_{uuid.uuid4().hex}", "content": content}
    else:
        (name, namespace), call = turn
        item = {
            "type": "function_call",
            "call_id": f"call_{len(shown)}",
            "name": name,
            **({"namespace": namespace} if namespace else {}),
            "arguments": json.dumps(call.arguments),
        }
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    yield {"type": "response.completed", "response": {"id": reply_id, "usage": usage}}


def names_of(tool: dict[str, Any]) -> Iterator[Named]:
    """The tools of an entry of the list, which may be a namespace of them."""
    if tool.get("type") == "namespace":
        yield from ((inner["name"], tool["name"]) for inner in tool["tools"])
    elif tool.get("type") == "function":
        yield tool["name"], ""


def chat_events(model: ScriptedModel, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The stream of ``/v1/chat/completions``."""
    offered = [(tool["function"]["name"], "") for tool in body.get("tools") or []]
    shown = [text_of(one["content"]) for one in body["messages"] if one["role"] == "tool"]
    # A request without tools is for something else than the conversation, such as a title for it.
    turn = model.choose(offered, shown) if offered else None
    delta: dict[str, Any] = {"role": "assistant", "content": LAST_WORDS}
    if turn is not None:
        (name, _), call = turn
        function = {"name": name, "arguments": json.dumps(call.arguments)}
        called = {"index": 0, "id": f"call_{len(shown)}", "type": "function", "function": function}
        delta = {"role": "assistant", "tool_calls": [called]}
    reason = "stop" if turn is None else "tool_calls"
    for choice in ({"delta": delta, "finish_reason": None}, {"delta": {}, "finish_reason": reason}):
        yield {
            "id": "chat-1",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "scripted",
            "choices": [{"index": 0, **choice}],
        }


def text_of(content: Any) -> str:
    """What a host hands on of a tool's result: a text, or parts of which some are texts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


@contextmanager
def scripted_model(turns: Sequence[Turn]) -> Iterator[ScriptedModel]:
    """A model that listens for the length of the block."""
    model = ScriptedModel(turns)
    handler = type("HandlerOfModel", (Handler,), {"model": model})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        model.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()
