"""Durable client for MCP Tasks: ``call_tool`` survives hours, questions and crashes.

::

    async with TasksClient("http://127.0.0.1:8000/mcp", elicitation=ask_the_user) as client:
        result = await client.call_tool("deploy", {"service": "web"})

The rooms, each importing only those above it:

======================  ========================================================================
``errors``              the exception tree
``wire``, ``params``    the extension's shapes: lenient when reading, exact when writing
``policy``              when to poll, when to retry, when a task's time is over
``states``, ``events``  what a call can be, what can happen to it and what then has to be done
``questions``           the server's questions of one call
``pace``                when the next request for a task may go
``machine``             the life of one call: ``advance(state, event, policy)``; in ``rounds`` what comes
                        before there is a task, in ``outcomes`` how it ends; pure, like all above
``clock``, ``signals``  time, passed in; being told that something has happened
``journal``             what must survive a crash: the contract, SQLite, memory
``sessions``            ways of reaching a server: the contract, HTTP, the official SDK; and 2025-11-25,
                        which differs behind the contract only
``schema``              values against JSON Schemas
``inputs``              questions to the host's callbacks, answers checked before they go
``owners``              who drives what: a client by its name, a process by its lease
``membership``          our client among those that share a journal: its lease, and its leaving
``points``              names of all the places where it would matter if we were stopped just there
``demands``             what a server of 2025-11-25 asks of the tasks that it has us run; pure
``received``            those tasks: states and replies; pure
``custody``             their records in the journal, and who may ask the host for them
``asking``              asks the host for them
``serving``             the requests about them, each answered until the server has that
``telling``             what the server is told of them, and of which it is told nothing
``parties``             the sessions that they belong to, and whether those are there still
``sweeper``             forgets what is over of them, and takes up what a process has left
``receiver``            runs them
``prompts``             a call's questions: what is before the host, and those that wait for their turn
``drive``, ``commits``  a call as it is driven; one step of it: event, advance, commit
``driver``              its requests, each of which comes back as the next event
``listener``            what the server has agreed to tell of tasks
``hearsay``             what it says by itself besides that
``calls``, ``line``     the life of one ``tools/call``: sent at most once, whatever its caller does; and
                        those that wait for their turn
``cancels``             the life of one ``tasks/cancel``: told whoever goes away
``turns``               the only loop: due times in a heap, a cap on polls in flight
``performer``           what the machine's actions come to: requests, questions, alarms
``afterwards``          what is written when nobody waits for it, and again when it could not be
``scheduler``           who waits for each call, for how long it is driven, and by whom
``upkeep``              what is done now and then: the lease is renewed, what is old forgotten
``results``             a result as it came, read and checked against its tool's schema
``handle``              a call in the host's hands
``idempotency``         the call that a key stands for: a new one, or the one that there is already
``recovery``            calls found again: after a restart, by an ID, by a reference
``engine``              what all ways in share, from opening to closing
``extension``           dropped into a client of the official SDK or FastMCP, and around one of mcp 1.x in
                        ``over_sdk_1``; ``transport`` under one of those; imported when used
``client``              what a host opens; ``blocking`` is the same without an event loop
``testing``             a manual clock and a scripted server for the tests of hosts, and ours
======================  ========================================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .old.blocking import BlockingTaskHandle, BlockingTasksClient
from .old.client import TasksClient
from .old.errors import (
    ConnectionLostError,
    CredentialRefusedError,
    DrivenElsewhereError,
    IdempotencyConflictError,
    InputUnansweredError,
    JournalCorruptError,
    JournalError,
    JournalLockedError,
    JournalSchemaError,
    MissingCapabilityError,
    OutcomeUnknownError,
    RemoteProtocolError,
    SessionError,
    TaskCancelledError,
    TaskError,
    TaskExpiredError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClientError,
    WaitTimeoutError,
)
from .old.handle import TaskHandle, TaskReference
from .old.inputs import InputContext
from .old.journal.base import Journal, TaskRecord
from .old.journal.memory import MemoryJournal
from .old.journal.sqlite import SqliteJournal
from .old.policy import PollPolicy
from .old.received import ReceivePolicy
from .old.wire import Task, TaskStatus

if TYPE_CHECKING:
    from .old.extension import TasksExtension
    from .old.transport import TasksTransport

_OVER_THE_SDK = {
    "TasksExtension": (".old.extension", " 2.x: pip install 'mcp-tasks-client[mcp]'"),
    "TasksTransport": (".old.transport", ": pip install mcp"),
}

__all__ = [
    "BlockingTaskHandle",
    "BlockingTasksClient",
    "ConnectionLostError",
    "CredentialRefusedError",
    "DrivenElsewhereError",
    "IdempotencyConflictError",
    "InputContext",
    "InputUnansweredError",
    "Journal",
    "JournalCorruptError",
    "JournalError",
    "JournalLockedError",
    "JournalSchemaError",
    "MemoryJournal",
    "MissingCapabilityError",
    "OutcomeUnknownError",
    "PollPolicy",
    "ReceivePolicy",
    "RemoteProtocolError",
    "SessionError",
    "SqliteJournal",
    "Task",
    "TaskCancelledError",
    "TaskError",
    "TaskExpiredError",
    "TaskFailedError",
    "TaskHandle",
    "TaskNotFoundError",
    "TaskRecord",
    "TaskReference",
    "TaskStatus",
    "TasksClient",
    "TasksClientError",
    "TasksExtension",
    "TasksTransport",
    "WaitTimeoutError",
]


def __getattr__(name: str) -> Any:
    # Not before they are used: they need the official SDK, which the rest does not.
    room, needed = _OVER_THE_SDK.get(name, ("", ""))
    if not room:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(room, __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise ImportError(f"{name} needs the official SDK{needed}", name="mcp") from None
