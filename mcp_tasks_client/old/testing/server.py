"""A server that plays a timeline for each task: one core with two faces, in memory and over HTTP."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from mcp_types import Tool

from ..clock import Clock, SystemClock
from ..wire import JSONObject
from .app import ASGIApp, asgi_app
from .desk import Desk, Plan, canonical
from .faults import (
    ErrorReply,
    Fault,
    Garbled,
    HttpError,
    HungUp,
    LostReply,
    LostRequest,
    RefusedError,
    Reply,
    Stale,
    Unreachable,
    delay_s,
)
from .notifying import Notifies, Stream
from .session import ServerSession
from .timeline import Terms
from .witness import Arrival, Witness

__all__ = ["Exchange", "ScriptedServer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request, and what is to come back."""

    arrival: Arrival
    reply: Reply | Stream
    after_s: float
    """Seconds by which it is delayed; infinity for ever."""


class ScriptedServer:
    """A tasks server of MCP 2026-07-28 that does what it is told, and remembers what reached it.

    ::

        clock = ManualClock()
        server = ScriptedServer(clock=clock)
        who = ask("name", form("Who?", name="string"))
        server.tool("deploy", [work(30), who, complete(text_result("done"))])
        async with scripted_client(server.session(), journal=MemoryJournal(), elicitation=answer) as client:
            handle = await client.start_tool("deploy")
            await clock.advance(60)
            await handle.result()
        server.witness.check()

    Nothing runs in the background: a task is wherever its timeline is at the time of a request. Where it
    ``notifies``, a stream is played by whoever listens to it.

    Args:
        clock: Whose time the timelines and the log are in; ``None`` is the system's.
        endpoint: The name of its sessions in the journal.
        identify: What a call is about, of the tool's name and the arguments, for ``witness.calls``. By
            default both, the arguments as JSON with sorted keys.
        new_task_id: Makes the task IDs; by default ``task-1``, ``task-2``…
        event_stream: Whether HTTP responses are event streams instead of JSON.
        tolerance_s: Seconds by which a poll may come early, see :class:`Witness`.

    Attributes:
        on_request: Asked about each request: a fault, or ``None`` if all is to go well.
        witness: What has arrived.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        endpoint: str = "scripted",
        identify: Callable[[str, JSONObject], Hashable] | None = None,
        new_task_id: Callable[[], str] | None = None,
        event_stream: bool = False,
        tolerance_s: float = 0.001,
    ) -> None:
        self.clock = clock or SystemClock()
        self.endpoint = endpoint
        self.event_stream = event_stream
        self.witness = Witness(tolerance_s=tolerance_s)
        self.on_request: Callable[[Arrival], Fault | None] | None = None
        self.app: ASGIApp = asgi_app(self)
        self._faults: dict[str, deque[Fault | None]] = {}
        new_task_id = new_task_id or map("task-{}".format, itertools.count(1)).__next__
        self._desk = Desk(self.clock, self.witness, identify or canonical, new_task_id)

    # ── what it does ──────────────────────────────────────────────────────────────────────────

    def tool(
        self,
        name: str,
        plan: Plan,
        *,
        poll_interval_ms: float | None = 1000,
        ttl_ms: float | None = None,
        settle_s: float = 0.1,
        cancellable: bool = True,
        late_answers: bool = False,
        request_state: bool = False,
        input_schema: JSONObject | None = None,
        output_schema: JSONObject | None = None,
    ) -> None:
        """Offer a tool, in place of an earlier one of that name. Its tasks go on as they are.

        Args:
            name: As it is listed and called.
            plan: Its steps; or a function that makes them of the arguments of each call.
            poll_interval_ms: The hint of its tasks, see :func:`hint`; ``None`` for none.
            ttl_ms: Milliseconds from its creation after which a task is unknown; ``None`` for never.
            settle_s: Seconds from the acknowledgement of an answer or of a cancel to its effect. Until
                then polls show the task as it was.
            cancellable: Whether a cancelled task ends in ``cancelled``. If not, it goes on as if nobody had
                said anything; the cancel is acknowledged all the same.
            late_answers: Whether answers to a task that has moved on are acknowledged. If not: -32602.
            request_state: Whether its tasks hand out a ``requestState``, and are unknown without one.
            input_schema: As it is listed. What is marked ``x-mcp-header`` is looked for in the headers.
            output_schema: As it is listed.

        Raises:
            ValueError: The steps cannot be taken, or the marks for headers are not allowed.
        """
        terms = Terms(
            poll_interval_ms=poll_interval_ms,
            ttl_ms=ttl_ms,
            settle_s=settle_s,
            cancellable=cancellable,
            late_answers=late_answers,
            request_state=request_state,
        )
        schema = input_schema or {"type": "object"}
        self._desk.offer(Tool(name=name, input_schema=schema, output_schema=output_schema), plan, terms)

    def misbehave(self, method: str, *faults: Fault | None) -> None:
        """Let the next requests of a method go wrong, one fault each; ``None`` lets one go well.

        They come before whatever ``on_request`` would say.
        """
        self._faults.setdefault(method, deque()).extend(faults)

    @property
    def notifies(self) -> Notifies | None:
        """How ``subscriptions/listen`` is answered from now on; ``None``: HTTP 404 with -32601."""
        return self._desk.notifies

    @notifies.setter
    def notifies(self, notifies: Notifies | None) -> None:
        self._desk.notifies = notifies

    def session(self, *, task_timeout_s: float = 30.0, call_read_timeout_s: float = 300.0) -> ServerSession:
        """A session with this server, in memory. The time-outs are those of :class:`HttpSession`."""
        return ServerSession(self, task_timeout_s=task_timeout_s, call_read_timeout_s=call_read_timeout_s)

    def listed(self, name: str) -> Tool | None:
        """A tool as it is listed; ``None`` if there is none of that name."""
        return self._desk.listed(name)

    # ── what both faces do with a request ─────────────────────────────────────────────────────

    def receive(self, method: str, params: JSONObject, headers: Mapping[str, str] | None = None) -> Exchange:
        """Take a request: log it, let it go wrong if it shall, do what it says.

        Args:
            method: JSON-RPC method.
            params: Its params.
            headers: By lower-case name; ``None`` where there are none.
        """
        arrival = Arrival(method=method, params=params, at=self.clock.monotonic(), headers=headers)
        arrival.fault = fault = self._fault(arrival)
        self.witness.arrived(arrival)
        reply: Reply | Stream = {}
        if fault is None or fault.acted:
            reply = self._act(arrival)
        match fault:
            case (
                LostRequest()
                | LostReply()
                | Unreachable()
                | HungUp()
                | HttpError()
                | ErrorReply()
                | Garbled()
            ):
                reply = fault
            case Stale(back) if method == "tasks/get" and isinstance(reply, dict):
                reply = self._desk.earlier(params["taskId"], back)
            case _:
                pass
        return Exchange(arrival=arrival, reply=reply, after_s=delay_s(fault))

    def replied(self, exchange: Exchange) -> None:
        """Note that the reply of an exchange leaves now, and is going to arrive."""
        reply = {} if isinstance(exchange.reply, Stream) else exchange.reply
        self.witness.replied(exchange.arrival, reply, self.clock.monotonic())

    def _fault(self, arrival: Arrival) -> Fault | None:
        queued = self._faults.get(arrival.method)
        if queued:
            return queued.popleft()
        return self.on_request(arrival) if self.on_request is not None else None

    def _act(self, arrival: Arrival) -> Reply | Stream:
        try:
            return self._desk.act(arrival)
        except RefusedError as refused:
            return refused.reply
