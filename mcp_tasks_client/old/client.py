"""The client: ``call_tool`` that takes its time, handles, and what the journal remembers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from mcp_types import CallToolResult

from .engine import Engine, OnAbandon, OnUpdate
from .handle import TaskHandle, TaskReference
from .idempotency import OnUnknown
from .inputs import Callbacks, ElicitationCallback, Inputs, RootsCallback, SamplingCallback
from .journal.base import Journal, Scope, TaskRecord
from .journal.sqlite import chosen_journal
from .policy import PollPolicy
from .received import ReceivePolicy
from .receiver import Receiver
from .sessions.base import Session, ToolCall
from .sessions.hosts import is_client, sdk_has_extensions
from .sessions.task_wish import TASK_TTL_S, Preference, TaskWish

if TYPE_CHECKING:
    import fastmcp
    import mcp

    from .sessions.http import AnyAuth, AnyClient

__all__ = ["TasksClient"]


class TasksClient:
    """Calls the tools of one MCP server, and sees tasks through to their results.

    Use it as ``async with TasksClient(...) as client``; nothing of it runs outside that block. On
    the way out, tasks that are not done are left to the server and to the journal.

    Args:
        server: The server's URL; or the host's own client, connected and made with
            ``extensions=[TasksExtension()]``: an ``mcp.Client``, a ``fastmcp.Client`` or an
            ``mcp.ClientSession``, which may be one of mcp 1.x; or a :class:`Session`. What is not given
            here is taken from the client's extension, callbacks from the client itself. A server of
            2025-11-25 needs no extension.
        journal: ``None`` is the user's default SQLite file; a path is another file; a
            :class:`Journal` is used as it is (``MemoryJournal()`` opts out of durability).
        endpoint: Names the server in the journal; derived from the URL or the command if ``None``,
            and required where there is neither.
        principal: On whose behalf; records of one principal are never used for another.
        elicitation: Answers ``elicitation/create``, form and URL.
        sampling: Answers ``sampling/createMessage``.
        roots: Answers ``roots/list``.
        poll: Latency against load.
        receive: Limits of the tasks that a server of 2025-11-25 may have us run, which are elicitations
            and samplings for which it comes back: at most 32 at once and 1000 kept in a session, each for
            an hour where the server does not say, and for a day at most. They go on after a crash as soon
            as the client is open again. Only for a server that is given by its URL.
        on_abandon: What happens to the task of a ``call_tool`` that times out or is cancelled:
            ``"detach"`` lets it go on, ``"cancel"`` sends ``tasks/cancel``.
        http_client: An ``httpx.AsyncClient`` or ``httpx2.AsyncClient`` with your transport, proxies,
            certificates. Not closed.
        headers: Sent with every request.
        auth: User and password, or any auth of httpx or httpx2.
        task_preference: Of a server of 2025-11-25: whether to ask for tasks. ``"auto"``
            does where the tool allows it, ``"always"`` calls no other tool, ``"never"`` makes plain calls.
        task_ttl_s: Of such a server: seconds for which it is asked to keep a task and its result.

    Raises:
        TypeError: ``server`` or ``journal`` is none of the above.
        ValueError: The URL is not an HTTP one, the server needs an ``endpoint``, a word is none of those that
            it can be, or HTTP options or ``receive`` are given for a client of the host's own.
    """

    def __init__(
        self,
        server: str | Session | mcp.Client | fastmcp.Client[Any] | mcp.ClientSession,
        *,
        journal: Journal | str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        principal: str = "",
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
        poll: PollPolicy | None = None,
        receive: ReceivePolicy | None = None,
        on_abandon: OnAbandon = "detach",
        http_client: AnyClient | None = None,
        headers: Mapping[str, str] | None = None,
        auth: AnyAuth | None = None,
        task_preference: Preference = "auto",
        task_ttl_s: float = TASK_TTL_S,
    ) -> None:
        wish = TaskWish(prefer=task_preference, ttl_s=task_ttl_s)
        if is_client(server):
            if any(option is not None for option in (http_client, headers, auth)):
                raise ValueError("http_client, headers and auth belong to the client; give them to that one")
            if receive is not None:
                raise ValueError(
                    "a client of your own runs no tasks for its server; give a URL, or no receive"
                )
            # Both need the SDK, which whoever has a client of it has, in one of two generations.
            if sdk_has_extensions():
                from .extension import engine_over
            else:
                from .over_sdk_1 import engine_over

            self._engine = engine_over(
                server,
                journal=journal,
                endpoint=endpoint,
                principal=principal,
                elicitation=elicitation,
                sampling=sampling,
                roots=roots,
                poll=poll,
                on_abandon=on_abandon,
                wish=wish,
            )
            return
        inputs = Callbacks(elicitation=elicitation, sampling=sampling, roots=roots)
        policy = poll or PollPolicy()
        kept = chosen_journal(journal)
        session = _session(
            server,
            endpoint=endpoint,
            inputs=inputs,
            receiver=lambda name: Receiver(kept, inputs, name, principal, policy=receive),
            policy=policy,
            http_client=http_client,
            headers=headers,
            auth=auth,
            wish=wish,
        )
        self._engine = Engine(
            session=session,
            journal=kept,
            inputs=inputs,
            policy=policy,
            scope=Scope(endpoint or session.endpoint, principal),
            on_abandon=on_abandon,
        )

    # ── calling ───────────────────────────────────────────────────────────────────────────────

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        on_unknown: OnUnknown = "raise",
        on_update: OnUpdate | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Call a tool and return its result, however long the server takes for it.

        Args:
            name: The tool.
            arguments: Its arguments, as JSON values.
            timeout: Seconds for all of it, requests, questions and waiting included; ``None`` is
                no limit. When it is over the task goes on, see ``on_abandon``.
            idempotency_key: Makes the call one that can be repeated: a second call with the same
                key joins the first or returns its result, in this process or a later one.
            on_unknown: Under a key, what to do about an earlier call whose reply was lost:
                ``"raise"``, or ``"resend"`` if the tool may run twice.
            on_update: Gets each changed :class:`Task`. It may be a coroutine function; it should be
                quick. What it raises is logged and otherwise ignored.
            meta: Further entries for the request's ``_meta``.

        Returns:
            The server's result, unchanged; ``is_error`` is a result like any other.

        Raises:
            TaskError: The call ended in an error, or its task was cancelled or is gone.
            WaitTimeoutError: ``timeout`` is over; ``.handle`` is the task.
            InputUnansweredError: A question got no usable answer; ``.handle`` is the task.
            OutcomeUnknownError: The key's earlier call was sent and its reply was lost.
            IdempotencyConflictError: The key belongs to another tool or other arguments.
            SessionError: The server could not be reached, or refused, or broke the protocol.
            JournalError: The journal could not be written; what depended on it was not done.
            ValueError: Arguments or options make no sense.
        """
        return await self._engine.call(
            _call(name, arguments, meta),
            timeout=timeout,
            key=idempotency_key,
            on_unknown=on_unknown,
            on_update=on_update,
        )

    async def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        on_unknown: OnUnknown = "raise",
        meta: Mapping[str, Any] | None = None,
    ) -> TaskHandle:
        """Call a tool and return as soon as the server has answered, with a task or a result.

        The task is observed in the background until it ends or the client closes, and its
        questions are answered by the callbacks meanwhile.

        Args and errors are those of :meth:`call_tool`, up to the server's first answer.
        """
        return await self._engine.start(
            _call(name, arguments, meta), key=idempotency_key, on_unknown=on_unknown
        )

    # ── finding again ─────────────────────────────────────────────────────────────────────────

    async def resume(self) -> list[TaskHandle]:
        """Take up every unfinished task of this endpoint and principal that nobody in this process drives.

        Also returns handles of finished calls whose outcome nobody has received yet. Observation
        goes on in the background as with :meth:`start_tool`, at the pace that was kept before.

        Returns:
            Handles, oldest first.

        Raises:
            JournalError: The journal could not be read.
        """
        return await self._engine.resume()

    async def attach(self, task_id_or_reference: str | TaskReference) -> TaskHandle:
        """A handle for a task that is known by its ID or by a handle's reference.

        It is observed in the background. A task that the journal does not know yet becomes part of it
        and is looked at once before this returns; whatever that brought, ``result()`` tells.

        Raises:
            ValueError: The ID is empty, or the reference belongs to another endpoint or principal
                or names a call of which this journal holds nothing.
            JournalError: The journal could not be read or written.
        """
        return await self._engine.attach(task_id_or_reference)

    async def records(self, *, pending: bool = False, listed: bool = False) -> list[TaskRecord]:
        """What the journal knows of this endpoint and principal, oldest first.

        Args:
            pending: Only tasks that are not over, and outcomes that nobody has received. It then takes
                as long as there are of those, however many others there are.
            listed: Also the tasks that a server of 2025-11-25 lists for this session, and the journal does
                not hold: without a tool, and to be attached by their ID. Other servers list none.

        Raises:
            JournalError: The journal could not be read.
            SessionError: The server could not be asked.
        """
        return await self._engine.records(pending=pending, listed=listed)

    async def prune(self, older_than_s: float | None = None) -> int:
        """Forget calls whose outcome was delivered, in the whole journal, whoever made them.

        Happens by itself, with the journal's ``retention_s``. What was not delivered is never forgotten,
        nor a call of unknown outcome. Under the key of what is forgotten, a call is a new one.

        Args:
            older_than_s: Seconds since the delivery, at least a minute, for others may be waiting for
                the same call; ``None`` is the journal's ``retention_s``.

        Returns:
            How many calls.

        Raises:
            JournalError: The journal could not be written.
            ValueError: ``older_than_s`` is negative.
        """
        if older_than_s is not None and not older_than_s >= 0:
            raise ValueError(f"older_than_s cannot be negative, got {older_than_s}")
        return await self._engine.prune(older_than_s)

    # ── opening and closing ───────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Open the journal, which proves that it can be written. Nothing is sent yet.

        Raises:
            JournalError: The journal cannot be used; the message says why and what to do.
        """
        await self._engine.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let go of every task, finish what has to be written, close."""
        await self._engine.__aexit__(exc_type, exc, traceback)


def _session(
    server: object,
    *,
    endpoint: str | None,
    inputs: Inputs,
    receiver: Callable[[str], Receiver],
    policy: PollPolicy,
    **http: Any,
) -> Session:
    if isinstance(server, Session):
        return server
    if isinstance(server, str):
        from .sessions.generations import session_at

        return session_at(
            server,
            endpoint=endpoint,
            inputs=inputs,
            receiver=receiver,
            tasks_in_flight=policy.polls_in_flight,
            **http,
        )
    raise TypeError(f"server must be a URL, a client or a Session, not {type(server).__name__}")


def _call(name: str, arguments: Mapping[str, Any] | None, meta: Mapping[str, Any] | None) -> ToolCall:
    return ToolCall(name=name, arguments=_json(name, arguments), meta=_json(name, meta) if meta else None)


_JSON: Final = json.JSONEncoder(allow_nan=False)  # made once: json.dumps would make one each time


def _json(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy that later changes do not reach, and proof that it can be sent."""
    if not value:
        return {}
    try:
        copied = json.loads(_JSON.encode(dict(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the arguments of {name!r} cannot be sent as JSON: {error}") from None
    assert isinstance(copied, dict)
    return copied
