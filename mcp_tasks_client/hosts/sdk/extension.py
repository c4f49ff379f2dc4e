"""Dropped in: durable tasks for ``mcp.Client`` and ``fastmcp.Client``, by one argument.

::

    async with mcp.Client(url, extensions=[TasksExtension()]) as client:
        result = await client.call_tool("deploy", {"service": "web"})

The SDK sends ``tools/call`` and hands a task in the reply to the extension's resolver, which sees the task
through for as long as its caller waits. Nothing else runs beside the client, and there is no connection but
the client's own.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, Literal, Self
from weakref import WeakKeyDictionary

from mcp import ClientSession
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult, Result
from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from ...engine.audience import OnUpdate
from ...engine.endpoint import Endpoint, HostLine
from ...engine.engine import OnAbandon
from ...engine.environment import Environment
from ...engine.progress import tell_progress
from ...engine.tool_result import OutputSchema
from ...errors import RemoteProtocolError, TasksClientError
from ...handle import detached
from ...journal.base import Journal
from ...journal.sqlite.journal import choose_journal
from ...machine.record import Scope
from ...policy import PollPolicy
from ...protocol import EXTENSION_ID, JSONObject, MalformedError
from ...protocol.replies import Created, read_call_reply
from ...protocol.task import share_shape
from ...protocol.text import quote
from ...questions.callbacks import ElicitationCallback, RootsCallback, SamplingCallback
from ...sessions.base import Limits, Snapshot
from ..call_options import read_options
from ..shared_options import SharedOptions
from . import introspection
from .sdk_session import SdkSession, host_callbacks

__all__ = ["ClaimedTask", "TasksExtension"]

logger = logging.getLogger("mcp_tasks_client")


class ClaimedTask(Result):
    """A task as the reply to ``tools/call``, of any shape, so that no fault in it loses the task ID."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    result_type: Literal["task"] = Field(default="task", alias="resultType")
    _raw: JSONObject = PrivateAttr(default_factory=dict)
    _progress: ProgressFnT | None = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            claimed = handler(value)
        except ValidationError:
            if not isinstance(value, dict):
                raise
            claimed = cls.model_construct()
        if isinstance(value, dict):
            claimed._raw = value
            claimed._progress = introspection.progress_callback_of_reply()
        share_shape(claimed)  # the SDK keeps it for as long as the call waits
        return claimed

    @property
    def raw(self) -> JSONObject:
        """The reply as the server sent it."""
        return self._raw

    @property
    def task_id(self) -> str | None:
        """For :meth:`TasksClient.attach`, where the SDK refused to go on with the task."""
        task_id = self._raw.get("taskId")
        return task_id if isinstance(task_id, str) else None


@cache
def _claimed_task_like(theirs: type[Result]) -> type[ClaimedTask]:
    """A model that is FastMCP's as well, so that ``fastmcp_tasks.call_tool_task`` gives its handle."""
    return type("FastMCPClaimedTask", (ClaimedTask, theirs), {"__module__": __name__})


class TasksExtension(ClientExtension):
    """Durable tasks in a client of the official SDK or of FastMCP: pass it in ``extensions=[...]``.

    ``call_tool`` then returns the result of a task as it returns any other, and the task is journaled
    first. ``TasksClient(client).resume()`` takes up calls that a crash left unfinished. Several clients of
    one event loop may share an extension, also at the same time.

    Two kinds of calls see a task through themselves, so that it is not journaled.
    ``client.session.call_tool(...)`` raises ``UnexpectedClaimedResult``, unless it is given
    ``allow_claimed=True``: ``TasksClient(client).attach(error.result.task_id)`` takes the task up.
    ``fastmcp_tasks.call_tool_task(client, ...)`` gives FastMCP's own handle; ``fastmcp_tasks`` must have been
    imported before the client is made.

    Where the connection was negotiated at an older version of the protocol, the SDK asks no extension:
    ``call_tool`` is a plain call, as without this one, and a tool that requires a task answers with an
    error result. A client that is given a :class:`TasksTransport` gets their results there.

    Args:
        journal: ``None`` is the user's default SQLite file; a path is another file; a
            :class:`Journal` is used as it is.
        endpoint: Names the server in the journal; ``None`` derives it from the client's URL or
            command, and is refused where the client has neither.
        principal: On whose behalf; records of one principal are never used for another.
        application: Names the program in the journal, as for :class:`TasksClient`.
        elicitation: Answers ``elicitation/create``. Like the next two, ``None`` leaves it to the
            client's own callback.
        sampling: Answers ``sampling/createMessage``.
        roots: Answers ``roots/list``.
        poll: Latency against load.
        on_abandon: As for :class:`TasksClient`.
        output_schema: As for :class:`TasksClient`, and for ``TasksClient(client)``. The SDK checks the
            results of the client's own ``call_tool``.
        timeout_excludes_questions: Whether the ``read_timeout_seconds`` of a call does not count while the
            host is asked by its task.
        on_update: Gets each changed :class:`Task` of every call. A call's own progress callback is
            given the status messages besides.
        environment: Clock, jitter and process, for tests, and an observer; ``None`` is the real ones.

    Raises:
        TypeError: ``journal`` is none of the above.
        ValueError: ``on_abandon`` or ``output_schema`` is no word for it, or ``application`` is no name; or,
            when the client is made, its server has no address and ``endpoint`` is not given.
    """

    identifier = EXTENSION_ID

    def __init__(
        self,
        *,
        journal: Journal | str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        principal: str = "",
        application: str | None = None,
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
        poll: PollPolicy | None = None,
        on_abandon: OnAbandon = "detach",
        output_schema: OutputSchema = "raise",
        timeout_excludes_questions: bool = False,
        on_update: OnUpdate | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.options = SharedOptions(
            journal=choose_journal(journal),
            endpoint=endpoint,
            principal=principal,
            application=application,
            elicitation=elicitation,
            sampling=sampling,
            roots=roots,
            poll=poll,
            on_abandon=on_abandon,
            output_schema=output_schema,
            environment=environment,
        )
        self.timeout_excludes_questions = timeout_excludes_questions
        self.on_update = on_update
        self.engine = self.options.make_engine()

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """The claim on tasks, with their resolver. The SDK asks once for each client that is made.

        Raises:
            ValueError: The client's server has no address, and the extension was given no ``endpoint``.
        """
        address = introspection.address_of(introspection.client_being_made(self))
        endpoint = self.options.endpoint or (address.endpoint if address is not None else None)
        if endpoint is None:
            raise ValueError(
                "the journal needs a name for this server, which has neither URL nor command; "
                'give it one that stays: TasksExtension(endpoint="my-server")'
            )
        theirs = introspection.fastmcp_created_task()
        model = ClaimedTask if theirs is None else _claimed_task_like(theirs)
        return (ResultClaim(result_type="task", model=model, resolve=Resolver(self, endpoint)),)


class Resolver:
    """Sees the tasks of one client through. ``endpoint`` is the server's name in the journal."""

    def __init__(self, extension: TasksExtension, endpoint: str) -> None:
        self.extension = extension
        self._scope = Scope(endpoint, extension.options.principal or "")
        self._endpoints: WeakKeyDictionary[ClientSession, Endpoint] = WeakKeyDictionary()

    async def __call__(self, claimed: ClaimedTask, context: ClaimContext) -> CallToolResult:
        """The result of a task, once it has ended.

        Raises:
            TasksClientError: There is no result, or the call's time limit has passed.
        """
        try:
            reply = read_call_reply(claimed.raw)
        except MalformedError as error:
            raise RemoteProtocolError(
                f"The task that the server made of {quote(context.tool_name)!r} cannot be used: {error}. "
                "Report it to the server's author."
            ) from None
        assert isinstance(reply, Created)  # it is for its resultType that it was claimed
        options = read_options()
        if options.key is not None:
            logger.warning(
                "An idempotency key has no effect under TasksExtension, since the SDK sends tools/call: "
                "a repetition calls %s again. Give the client to TasksClient(client), and the key to its "
                "call_tool.",
                quote(context.tool_name),
            )
        endpoint = self._endpoints.get(context.session)
        if endpoint is None:
            endpoint = self._endpoints[context.session] = self._make_endpoint(context.session)
        line = HostLine(_listeners(self.extension.on_update, claimed._progress))
        try:
            return await endpoint.see_task_through(
                line,
                Snapshot(reply.task, reply.session_data),
                context.tool_name,
                label=options.label,
                timeout=context.read_timeout_seconds,
                timeout_excludes_questions=self.extension.timeout_excludes_questions,
            )
        except TasksClientError as error:
            error.handle = detached(endpoint, line.begun)
            raise

    def _make_endpoint(self, session: ClientSession) -> Endpoint:
        """The endpoint of all calls over one connection, whose session caps their polls."""
        engine, callbacks = self.extension.engine, self.extension.options.callbacks
        # Weakly, because the endpoint is kept for as long as the session is, and must not keep it alive.
        current = _weakly(session)
        ours = SdkSession(
            current,
            endpoint=self._scope.endpoint,
            limits=Limits(tasks_in_flight=engine.policy.polls_in_flight),
            capabilities=callbacks.capabilities,
            sleep=engine.environment.clock.sleep,
        )
        return Endpoint(engine, ours, host_callbacks(current, callbacks), self._scope)


def _weakly(session: ClientSession) -> Callable[[], ClientSession]:
    """The session, for as long as its owner keeps it."""
    reference = weakref.ref(session)

    def current() -> ClientSession:
        alive = reference()
        if alive is None:
            raise RuntimeError("the session is gone")
        return alive

    return current


def _listeners(on_update: OnUpdate | None, progress: ProgressFnT | None) -> list[OnUpdate]:
    told = tell_progress(progress) if progress is not None else None
    return [listener for listener in (on_update, told) if listener is not None]
