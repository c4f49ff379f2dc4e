"""For the tests of hosts, and for ours: time that obeys, and servers that play a script.

A host that uses this package can test its own handling of hour-long tasks, questions and faults in
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
:class:`ScriptedServer`   plays a timeline for each task, in memory (``session()``) and over HTTP
                          (``app``, for any ASGI server), and remembers what reached it
``work`` … ``vanish``     the steps of a timeline
``LostReply`` …           what can go wrong with a request, on request
:class:`Notifies`         how ``subscriptions/listen`` is answered: well, in part, with lies, not at all
:class:`Witness`          early polls, missing headers, answers that differ, tools that ran twice
:class:`ScriptedSession`  one list of replies for each verb, for what no server would say
``working`` …             such replies
:class:`ManualClock`      stands still until told to advance
:class:`FaultPlan`        stops, kills, delays or fails a client at any of its commits and sends
========================  ======================================================================

All of them are under the contract tests that the real ones pass.
"""

from ..points import Point
from .client import scripted_client
from .clock import ManualClock
from .faults import (
    Delayed,
    ErrorReply,
    Fault,
    Garbled,
    HttpError,
    HungUp,
    LostReply,
    LostRequest,
    Stale,
    Stalled,
    Unreachable,
)
from .notifying import Notifies
from .probes import FaultPlan, KilledError, delay, kill, raising
from .script import STALL, ScriptedSession, Sent
from .server import ScriptedServer
from .session import ServerSession
from .snapshots import cancelled, completed, failed, input_required, text_result, working
from .steps import Step, abort, ask, ask_first, complete, fail, form, hint, reply, vanish, work
from .witness import Arrival, EarlyPoll, Listening, MissingHeader, Notified, Witness

__all__ = [
    "STALL",
    "Arrival",
    "Delayed",
    "EarlyPoll",
    "ErrorReply",
    "Fault",
    "FaultPlan",
    "Garbled",
    "HttpError",
    "HungUp",
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
    "ScriptedSession",
    "Sent",
    "ServerSession",
    "Stale",
    "Stalled",
    "Step",
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
