"""For the tests of hosts: time that a test advances, and servers that play a script.

A host that uses this package can test how it handles hour-long tasks, questions and faults in
microseconds::

    clock = ManualClock()
    server = ScriptedServer(clock=clock)
    who = ask("name", form("Who?", name="string"))
    server.tool("deploy", [work(3600), who, complete(text_result("done"))])
    server.misbehave("tasks/get", HttpError(503, retry_after_s=30))
    async with scripted_client(server.session(), journal=MemoryJournal(), elicitation=answer) as client:
        handle = await client.start_tool("deploy")
        await clock.advance(4000)
        assert (await handle.result()).content[0].text == "done"
    server.witness.check()

========================  ======================================================================
:class:`ScriptedServer`   plays the steps of each task, in memory (``session()``) and over HTTP
                          (``app``, for any ASGI server), and logs the requests
``work`` … ``vanish``     the steps of a tool
``LostReply`` …           the faults of a request
:class:`ExpiringToken`    a credential that expires, before the server or any other ASGI application
:class:`Notifies`         how ``subscriptions/listen`` is answered: well, in part, or wrongly
:class:`Witness`          early polls, missing headers, answers that differ, tools that ran twice
``working`` …             snapshots as they are on the wire
:class:`ManualClock`      stands still until a test advances it
:class:`FaultPlan`        stops, kills, delays or fails a client at any of its commits and sends
========================  ======================================================================

The scripted server passes the same contract tests as sessions with real servers. The author of a journal has
contract tests in ``mcp_tasks_client.testing.journal_contract``, which alone needs pytest.
"""

from ..engine.observer import POINTS, Point
from .client import scripted_client
from .clock import ManualClock
from .expiring_token import ExpiringToken
from .faults import (
    Delayed,
    ErrorReply,
    Fault,
    Garbled,
    HttpError,
    LostReply,
    LostRequest,
    Stale,
    Stalled,
    Unheeded,
    Unreachable,
)
from .memory_session import ServerSession
from .notifications import Notifies
from .probes import FaultPlan, KilledError, delay, kill, raising
from .server import ScriptedServer
from .snapshots import cancelled, completed, failed, input_required, text_result, working
from .steps import Step, abort, ask, ask_first, complete, fail, form, hint, reply, vanish, work
from .witness import Arrival, EarlyPoll, Listening, MissingHeader, Notified, Witness

__all__ = [
    "POINTS",
    "Arrival",
    "Delayed",
    "EarlyPoll",
    "ErrorReply",
    "ExpiringToken",
    "Fault",
    "FaultPlan",
    "Garbled",
    "HttpError",
    "KilledError",
    "Listening",
    "LostReply",
    "LostRequest",
    "ManualClock",
    "MissingHeader",
    "Notified",
    "Notifies",
    "Point",
    "ScriptedServer",
    "ServerSession",
    "Stale",
    "Stalled",
    "Step",
    "Unheeded",
    "Unreachable",
    "Witness",
    "abort",
    "ask",
    "ask_first",
    "cancelled",
    "complete",
    "completed",
    "delay",
    "fail",
    "failed",
    "form",
    "hint",
    "input_required",
    "kill",
    "raising",
    "reply",
    "scripted_client",
    "text_result",
    "vanish",
    "work",
    "working",
]
