"""A server that plays a script for each task: one core with two faces, in memory and over HTTP."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable

from mcp_types import Tool

from ..aio.clock import Clock, SystemClock
from ..protocol import JSONObject
from ..sessions.base import Limits
from .faults import Fault
from .http_app import HttpApp
from .memory_session import ServerSession
from .notifications import Notifies
from .request_handler import Plan, RequestHandler, identify_by_arguments
from .timeline import Traits
from .witness import Arrival, Witness

__all__ = ["ScriptedServer"]


class ScriptedServer:
    """A tasks server of MCP 2026-07-28 that plays the script of a test, and logs the requests.

    ::

        clock = ManualClock()
        server = ScriptedServer(clock=clock)
        who = ask("name", form("Who?", name="string"))
        server.tool("deploy", [work(30), who, complete(text_result("done"))])
        session = server.session()
        async with scripted_client(session, journal=MemoryJournal(), elicitation=answer) as client:
            handle = await client.start_tool("deploy")
            await clock.advance(60)
            await handle.result()
        server.witness.check()

    Nothing runs in the background: a task is wherever its steps have come by the time of a request. A
    stream of notifications is played by its client.

    Args:
        clock: The time of the tasks and of the log; ``None`` is the system's.
        endpoint: The server's name in the journal.
        identify: Returns the intent of a call for ``witness.calls``, from the tool's name and the arguments.
            By default both, the arguments as JSON with sorted keys.
        new_task_id: Makes the task IDs; by default ``task-1``, ``task-2``…
        event_stream: Whether HTTP responses are event streams instead of JSON; ``app.event_stream`` later.
        ids_as_text: Whether over HTTP a JSON-RPC ID that is a number comes back as text, as from some
            gateways; ``app.ids_as_text`` later.
        sloppy: Whether replies are not the protocol's, though there is only one thing they can mean: a task
            stands under ``task``, a list ends with an empty cursor; over HTTP a JSON response is a batch of
            one, and an event stream has other messages before the reply. ``app.sloppy`` later, for HTTP.
        tolerance_s: Seconds by which a poll may come early, see :class:`Witness`.

    Attributes:
        app: The server as an ASGI application.
        clock: As given.
        endpoint: As given.
        witness: The log of requests.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        endpoint: str = "scripted",
        identify: Callable[[str, JSONObject], Hashable] | None = None,
        new_task_id: Callable[[], str] | None = None,
        event_stream: bool = False,
        ids_as_text: bool = False,
        sloppy: bool = False,
        tolerance_s: float = 0.001,
    ) -> None:
        self.clock = clock or SystemClock()
        self.endpoint = endpoint
        self.witness = Witness(tolerance_s=tolerance_s)
        new_task_id = new_task_id or map("task-{}".format, itertools.count(1)).__next__
        self._requests = RequestHandler(
            self.clock, self.witness, identify or identify_by_arguments, new_task_id
        )
        self._sloppy = sloppy
        self.app = HttpApp(self._requests, event_stream=event_stream, ids_as_text=ids_as_text, sloppy=sloppy)

    def __repr__(self) -> str:
        # A failed assertion about the server shows it.
        counts = Counter(arrival.method for arrival in self.witness.arrivals)
        sent = ", ".join(f"{method}: {count}" for method, count in counts.items())
        return f"<{type(self).__name__} {self.endpoint} was sent {sent or 'nothing'}>"

    # ── the script ────────────────────────────────────────────────────────────────────────────

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
        """Offer a tool, in place of an earlier one of that name. Tasks of the earlier one go on.

        Args:
            name: As it is listed and called.
            plan: Its steps, or a function that makes them from the arguments of each call.
            poll_interval_ms: The poll interval of its tasks, see :func:`hint`; ``None`` for none.
            ttl_ms: Milliseconds from its creation after which a task is unknown; ``None`` for never.
            settle_s: Seconds from the acknowledgement of an answer or of a cancel to its effect. Until
                then polls show the task as it was.
            cancellable: Whether a cancelled task ends in ``cancelled``. If not, a cancel is acknowledged
                and has no effect.
            late_answers: Whether answers to a task that has moved on are acknowledged. If not: -32602.
            request_state: Whether its tasks hand out a ``requestState``, and are unknown without one.
            input_schema: As it is listed. Arguments marked ``x-mcp-header`` must come as headers too.
            output_schema: As it is listed.

        Raises:
            ValueError: The steps cannot be taken, or an ``x-mcp-header`` mark is not allowed.
        """
        traits = Traits(
            poll_interval_ms=poll_interval_ms,
            ttl_ms=ttl_ms,
            settle_s=settle_s,
            cancellable=cancellable,
            late_answers=late_answers,
            request_state=request_state,
        )
        schema = input_schema or {"type": "object"}
        listed = Tool(name=name, input_schema=schema, output_schema=output_schema)
        self._requests.add_tool(listed, plan, traits)

    def misbehave(self, method: str, *faults: Fault | None) -> None:
        """Have the next requests of a method go wrong, one fault each. ``None`` lets one go well.

        These faults come before those of ``on_request``.
        """
        self._requests.queue_faults(method, faults)

    @property
    def on_request(self) -> Callable[[Arrival], Fault | None] | None:
        """Called with each request. Returns a fault, or ``None`` if all is to go well."""
        return self._requests.on_request

    @on_request.setter
    def on_request(self, on_request: Callable[[Arrival], Fault | None] | None) -> None:
        self._requests.on_request = on_request

    @property
    def notifies(self) -> Notifies | None:
        """How ``subscriptions/listen`` is answered from now on; ``None``: HTTP 404 with -32601."""
        return self._requests.notifies

    @notifies.setter
    def notifies(self, notifies: Notifies | None) -> None:
        self._requests.notifies = notifies

    def session(self, *, limits: Limits | None = None) -> ServerSession:
        """A session with this server, in memory.

        Args:
            limits: Its time-outs, by the server's clock; ``None`` for the defaults.
        """
        return ServerSession(self._requests, self.endpoint, limits or Limits(), sloppy=self._sloppy)
