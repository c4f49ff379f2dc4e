"""Durable client for MCP Tasks: ``call_tool`` survives hours, questions and crashes.

::

    async with TasksClient("http://127.0.0.1:8000/mcp", elicitation=ask_the_user) as client:
        result = await client.call_tool("deploy", {"service": "web"})
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .aio.clock import Clock, SystemClock
    from .blocking import BlockingInbox, BlockingQuestion, BlockingTaskHandle, BlockingTasksClient
    from .client import TasksClient
    from .engine.environment import Environment
    from .engine.observer import Observer, Point
    from .errors import (
        AlreadyAnsweredError,
        CallForgottenError,
        ConnectionLostError,
        CredentialRefusedError,
        DrivenElsewhereError,
        FormError,
        Handle,
        IdempotencyConflictError,
        InputUnansweredError,
        InvalidAnswerError,
        JournalCodecError,
        JournalCorruptError,
        JournalError,
        JournalLockedError,
        JournalSchemaError,
        MissingCapabilityError,
        OpenQuestion,
        OutcomeUnknownError,
        QuestionWithdrawnError,
        RemoteProtocolError,
        SessionError,
        TaskCancelledError,
        TaskError,
        TaskExpiredError,
        TaskFailedError,
        TaskNotFoundError,
        TasksClientError,
        ToolError,
        WaitTimeoutError,
    )
    from .estimate import Estimate
    from .handle import TaskHandle, TaskReference
    from .hosts.call_options import call_label, idempotency_key
    from .hosts.http.http_client import tasks_http_client, tasks_http_client_factory
    from .hosts.http.tasks_http_transport import TasksHttpTransport
    from .hosts.relay.tasks_transport import TasksTransport
    from .hosts.sdk.extension import TasksExtension
    from .inbox import Inbox
    from .journal.base import Asking, Instruction, Journal, Lease, LeaseSource, Listener, Taken
    from .journal.codec import Codec
    from .journal.encryption import FernetCodec
    from .journal.examination import Examination, JournalUser
    from .journal.postgres.journal import PostgresJournal
    from .journal.sqlite.journal import SqliteJournal
    from .journal.sqlite.memory import MemoryJournal
    from .machine.record import Origin, Scope, TaskRecord, digest_arguments
    from .machine.states import LastFailure
    from .policy import PollPolicy, ReceivePolicy
    from .protocol.task import Task, TaskStatus
    from .questions.callbacks import InputContext
    from .questions.question import Question
    from .sessions.base import Limits, ObservedTasks, Session, Snapshot, TaskRef, ToolCall
    from .sessions.stdio.stdio_server import StdioServer

_NEED_AN_EXTRA = {
    "FernetCodec": (".journal.encryption", "cryptography", "pip install cryptography"),
    "PostgresJournal": (".journal.postgres.journal", "psycopg", "pip install 'psycopg[binary]'"),
    "TasksExtension": (".hosts.sdk.extension", "mcp.client.extension", "pip install 'mcp>=2,<3'"),
    "TasksTransport": (".hosts.relay.tasks_transport", "mcp", "pip install mcp"),
}

_NAMES_OF = {
    ".aio.clock": (
        "Clock",
        "SystemClock",
    ),
    ".blocking": (
        "BlockingInbox",
        "BlockingQuestion",
        "BlockingTaskHandle",
        "BlockingTasksClient",
    ),
    ".client": ("TasksClient",),
    ".engine.environment": ("Environment",),
    ".engine.observer": (
        "Observer",
        "Point",
    ),
    ".errors": (
        "AlreadyAnsweredError",
        "CallForgottenError",
        "ConnectionLostError",
        "CredentialRefusedError",
        "DrivenElsewhereError",
        "FormError",
        "Handle",
        "IdempotencyConflictError",
        "InputUnansweredError",
        "InvalidAnswerError",
        "JournalCodecError",
        "JournalCorruptError",
        "JournalError",
        "JournalLockedError",
        "JournalSchemaError",
        "MissingCapabilityError",
        "OpenQuestion",
        "OutcomeUnknownError",
        "QuestionWithdrawnError",
        "RemoteProtocolError",
        "SessionError",
        "TaskCancelledError",
        "TaskError",
        "TaskExpiredError",
        "TaskFailedError",
        "TaskNotFoundError",
        "TasksClientError",
        "ToolError",
        "WaitTimeoutError",
    ),
    ".estimate": ("Estimate",),
    ".handle": (
        "TaskHandle",
        "TaskReference",
    ),
    ".hosts.call_options": (
        "call_label",
        "idempotency_key",
    ),
    ".hosts.http.http_client": (
        "tasks_http_client",
        "tasks_http_client_factory",
    ),
    ".hosts.http.tasks_http_transport": ("TasksHttpTransport",),
    ".inbox": ("Inbox",),
    ".journal.base": (
        "Asking",
        "Instruction",
        "Journal",
        "Lease",
        "LeaseSource",
        "Listener",
        "Taken",
    ),
    ".journal.codec": ("Codec",),
    ".journal.examination": (
        "Examination",
        "JournalUser",
    ),
    ".journal.sqlite.journal": ("SqliteJournal",),
    ".journal.sqlite.memory": ("MemoryJournal",),
    ".machine.record": (
        "Origin",
        "Scope",
        "TaskRecord",
        "digest_arguments",
    ),
    ".machine.states": ("LastFailure",),
    ".policy": (
        "PollPolicy",
        "ReceivePolicy",
    ),
    ".protocol.task": (
        "Task",
        "TaskStatus",
    ),
    ".questions.callbacks": ("InputContext",),
    ".questions.question": ("Question",),
    ".sessions.base": (
        "Limits",
        "ObservedTasks",
        "Session",
        "Snapshot",
        "TaskRef",
        "ToolCall",
    ),
    ".sessions.stdio.stdio_server": ("StdioServer",),
}
"""The public names of each module. They are imported on use: some hosts lack httpx, and the command
shows its help sooner."""

_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [
    "AlreadyAnsweredError",
    "Asking",
    "BlockingInbox",
    "BlockingQuestion",
    "BlockingTaskHandle",
    "BlockingTasksClient",
    "CallForgottenError",
    "Clock",
    "Codec",
    "ConnectionLostError",
    "CredentialRefusedError",
    "DrivenElsewhereError",
    "Environment",
    "Estimate",
    "Examination",
    "FernetCodec",
    "FormError",
    "Handle",
    "IdempotencyConflictError",
    "Inbox",
    "InputContext",
    "InputUnansweredError",
    "Instruction",
    "InvalidAnswerError",
    "Journal",
    "JournalCodecError",
    "JournalCorruptError",
    "JournalError",
    "JournalLockedError",
    "JournalSchemaError",
    "JournalUser",
    "LastFailure",
    "Lease",
    "LeaseSource",
    "Limits",
    "Listener",
    "MemoryJournal",
    "MissingCapabilityError",
    "ObservedTasks",
    "Observer",
    "OpenQuestion",
    "Origin",
    "OutcomeUnknownError",
    "Point",
    "PollPolicy",
    "PostgresJournal",
    "Question",
    "QuestionWithdrawnError",
    "ReceivePolicy",
    "RemoteProtocolError",
    "Scope",
    "Session",
    "SessionError",
    "Snapshot",
    "SqliteJournal",
    "StdioServer",
    "SystemClock",
    "Taken",
    "Task",
    "TaskCancelledError",
    "TaskError",
    "TaskExpiredError",
    "TaskFailedError",
    "TaskHandle",
    "TaskNotFoundError",
    "TaskRecord",
    "TaskRef",
    "TaskReference",
    "TaskStatus",
    "TasksClient",
    "TasksClientError",
    "TasksExtension",
    "TasksHttpTransport",
    "TasksTransport",
    "ToolCall",
    "ToolError",
    "WaitTimeoutError",
    "call_label",
    "digest_arguments",
    "idempotency_key",
    "tasks_http_client",
    "tasks_http_client_factory",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # on use, since it reads files

        return version("mcp-tasks-client")
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name], __name__), name)
    if name not in _NEED_AN_EXTRA:
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")  # such as mcp_tasks_client.errors
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, needed, remedy = _NEED_AN_EXTRA[name]
    if not _is_installed(needed):
        return _make_placeholder(name, needed, remedy)
    return getattr(import_module(module, __name__), name)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def _make_placeholder(name: str, needed: str, remedy: str) -> type:
    """A class that says what to install when it is used. Importing it fails nowhere, not even with ``*``."""

    def refuse(cls: type, *args: object, **options: object) -> object:
        raise ImportError(f"{name} needs {needed}: {remedy}", name=needed)

    return type(name, (), {"__new__": refuse, "__doc__": f"Needs {needed}: {remedy}"})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
