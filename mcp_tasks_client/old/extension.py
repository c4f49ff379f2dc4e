"""Dropped in: durable tasks for ``mcp.Client`` and ``fastmcp.Client``, by one argument.

::

    async with mcp.Client(url, extensions=[TasksExtension()]) as client:
        result = await client.call_tool("deploy", {"service": "web"})

The SDK sends ``tools/call`` and hands a task in its reply to the extension, with no more than the
session and the tool's name. What else is needed is read where the SDK has it: the server's
address from the client that is being made, the progress callback from the request that is being
answered. Both are looked for among the callers, since an extension is never told.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, ClassVar, Literal, Self
from weakref import WeakKeyDictionary

import anyio
from mcp import ClientSession
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult, Result
from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from .engine import Engine, OnAbandon, OnUpdate
from .errors import JournalError, RemoteProtocolError, TasksClientError
from .handle import TaskReference, detached_handle
from .inputs import ElicitationCallback, RootsCallback, SamplingCallback
from .journal.base import Journal, Scope
from .journal.sqlite import chosen_journal
from .policy import PollPolicy
from .sessions.host_session import HostSession
from .sessions.hosts import address_of, is_client
from .sessions.limits import Limits
from .sessions.sdk import SdkSession, host_callbacks
from .sessions.sdk_requests import SEND_REQUEST
from .sessions.task_wish import TaskWish
from .wire import EXTENSION_ID, Created, JSONObject, MalformedError, Task, read_call_reply

__all__ = ["ClaimedTask", "TasksExtension"]


class ClaimedTask(Result):
    """A task as the answer to ``tools/call``, whatever its shape: nothing in it may cost its ID.

    Attributes:
        raw: As it came.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    result_type: Literal["task"] = Field(default="task", alias="resultType")
    _raw: JSONObject = PrivateAttr(default_factory=dict)
    _progress: Any = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        claimed = handler(value)
        if isinstance(value, dict):
            claimed._raw = value
            claimed._progress = _progress_callback()
        return claimed

    @property
    def raw(self) -> JSONObject:
        """As it came."""
        return self._raw

    @property
    def task_id(self) -> str | None:
        """For :meth:`TasksClient.attach`, where the SDK refused to go on with it."""
        task_id = self._raw.get("taskId")
        return task_id if isinstance(task_id, str) else None


class TasksExtension(ClientExtension):
    """Durable tasks in a client of the official SDK or of FastMCP: pass it in ``extensions=[...]``.

    ``call_tool`` then returns the result of a task as it does any other, having journaled the task
    first. What a crash left unfinished, ``TasksClient(client).resume()`` takes up.

    Where the connection was negotiated at an older version of the protocol, the SDK asks no extension:
    ``call_tool`` is a plain call, as without this one, and a tool that requires a task answers with an
    error result. A client that is given a :class:`TasksTransport` gets their results there, as does
    ``TasksClient(client).call_tool(...)``.

    Args:
        journal: ``None`` is the user's default SQLite file; a path is another file; a
            :class:`Journal` is used as it is.
        endpoint: Names the server in the journal; ``None`` derives it from the client's URL or
            command, and is refused where it has neither.
        principal: On whose behalf; records of one principal are never used for another.
        elicitation: Answers ``elicitation/create``. Like the next two, ``None`` leaves it to the
            client's own callback.
        sampling: Answers ``sampling/createMessage``.
        roots: Answers ``roots/list``.
        poll: Latency against load.
        on_abandon: What happens to the task of a call that times out or is cancelled.
        on_update: Gets each changed :class:`Task` of every call. A call's own progress callback is
            given the status messages besides.

    Raises:
        TypeError: ``journal`` is none of the above.
        ValueError: ``on_abandon`` is neither word; or, when the client is made, its server has no
            address and ``endpoint`` is not given.
    """

    identifier = EXTENSION_ID

    def __init__(
        self,
        *,
        journal: Journal | str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        principal: str = "",
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
        poll: PollPolicy | None = None,
        on_abandon: OnAbandon = "detach",
        on_update: OnUpdate | None = None,
    ) -> None:
        if on_abandon not in ("detach", "cancel"):
            raise ValueError(f'on_abandon must be "detach" or "cancel", got {on_abandon!r}')
        self.journal = chosen_journal(journal)
        self.endpoint = endpoint
        self.principal = principal
        self.elicitation = elicitation
        self.sampling = sampling
        self.roots = roots
        self.poll = poll or PollPolicy()
        self.on_abandon = on_abandon
        self.on_update = on_update

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Tasks, and who sees them through. Asked for once for each client that is made.

        Raises:
            ValueError: The client's server has no address, and the extension was given no ``endpoint``.
        """
        address = address_of(_client_being_made())
        endpoint = self.endpoint or (address.endpoint if address is not None else None)
        if endpoint is None:
            raise ValueError(
                "the journal needs a name for this server, which has neither URL nor command; "
                'give it one that stays: TasksExtension(endpoint="my-server")'
            )
        resolver = Resolver(self, endpoint, ephemeral=address is not None and address.ephemeral)
        return (ResultClaim(result_type="task", model=ClaimedTask, resolve=resolver),)


class Resolver:
    """Sees the tasks of one client through.

    Attributes:
        extension: Whose tasks they are.
    """

    def __init__(self, extension: TasksExtension, endpoint: str, *, ephemeral: bool) -> None:
        self.extension = extension
        self._scope = Scope(endpoint, extension.principal)
        self._ephemeral = ephemeral
        # One for each connection, so that all of its calls share a cap and a list of tools.
        self._sessions: WeakKeyDictionary[ClientSession, SdkSession] = WeakKeyDictionary()

    async def __call__(self, claimed: ClaimedTask, context: ClaimContext) -> CallToolResult:
        try:
            reply = read_call_reply(claimed.raw)
        except MalformedError as error:
            raise RemoteProtocolError(
                f"The task that the server made of {context.tool_name!r} cannot be used: {error}. "
                "Report it to the server's author."
            ) from None
        assert isinstance(reply, Created)  # it is for its resultType that it was claimed
        task = reply.task
        listeners = _listeners(self.extension.on_update, claimed._progress)
        outcome: list[CallToolResult | Exception | None] = []
        waiting, ended = anyio.CancelScope(), anyio.Event()

        async def run() -> None:
            # Shielded, since an engine needs its tasks to end in good order: to journal the task, and
            # to tell the server that it is given up. All of that is bounded.
            with anyio.CancelScope(shield=True):
                try:
                    outcome.append(await self._seen_through(task, context, listeners, waiting))
                except Exception as error:
                    outcome.append(error)
            ended.set()

        # In a task of its own, since asyncio's own cancellation goes through every shield.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            try:
                await ended.wait()
            finally:
                waiting.cancel()
        result = outcome[0] if outcome else None
        if result is None:  # who is cancelled from outside does not come here
            raise TasksClientError(
                "The call was cancelled from inside. The task goes on: "
                "TasksClient(client).resume() takes it up."
            )
        if isinstance(result, Exception):
            raise result
        return result

    async def _seen_through(
        self,
        task: Task,
        context: ClaimContext,
        listeners: Sequence[OnUpdate],
        waiting: anyio.CancelScope,
    ) -> CallToolResult | None:
        """The result; ``None`` if the waiting is cancelled before there is one."""
        extension = self.extension
        engine = Engine(
            session=self._session(context.session),
            journal=extension.journal,
            inputs=host_callbacks(
                lambda: context.session,
                elicitation=extension.elicitation,
                sampling=extension.sampling,
                roots=extension.roots,
            ),
            policy=extension.poll,
            scope=self._scope,
            on_abandon=extension.on_abandon,
        )
        try:
            async with engine:
                with waiting:
                    return await engine.see_through(
                        task, context.tool_name, timeout=context.read_timeout_seconds, listeners=listeners
                    )
                return None
        except JournalError as error:
            if error.handle is None:
                # The journal did not open. The ID is all there is of the task now.
                error.handle = detached_handle(self._reference(task, context.tool_name), task)
            raise

    def _session(self, session: ClientSession) -> SdkSession:
        ours = self._sessions.get(session)
        if ours is None:
            ours = self._sessions[session] = SdkSession(
                _weakly(session),
                endpoint=self._scope.endpoint,
                ephemeral=self._ephemeral,
                tasks_in_flight=self.extension.poll.polls_in_flight,
            )
        return ours

    def _reference(self, task: Task, tool: str) -> TaskReference:
        return TaskReference(
            endpoint=self._scope.endpoint,
            principal=self._scope.principal,
            tool=tool,
            task_id=task.task_id,
            record_id="",
        )


def engine_over(
    client: Any,
    *,
    journal: Journal | str | os.PathLike[str] | None,
    endpoint: str | None,
    principal: str,
    elicitation: ElicitationCallback | None,
    sampling: SamplingCallback | None,
    roots: RootsCallback | None,
    poll: PollPolicy | None,
    on_abandon: OnAbandon,
    wish: TaskWish,
) -> Engine:
    """An engine over a host's client; what is not given is as in the client's extension.

    Raises:
        ValueError: The server has no address, and no ``endpoint`` is given.
    """
    extension = _extension_of(client)
    address = address_of(client)
    endpoint = endpoint or extension.endpoint or (address.endpoint if address is not None else None)
    if endpoint is None:
        raise ValueError(
            "the journal needs a name for this server, which has neither URL nor command that could be seen; "
            'give it one that stays: TasksClient(client, endpoint="my-server")'
        )

    def current() -> ClientSession:
        session = client if isinstance(client, ClientSession) else client.session
        assert isinstance(session, ClientSession)
        return session

    policy = poll or extension.poll
    inputs = host_callbacks(
        current,
        elicitation=elicitation or extension.elicitation,
        sampling=sampling or extension.sampling,
        roots=roots or extension.roots,
    )
    return Engine(
        session=HostSession(
            current,
            endpoint=endpoint,
            inputs=inputs,
            ephemeral=address is not None and address.ephemeral,
            limits=Limits.of_host(policy.polls_in_flight),
            wish=wish,
        ),
        journal=extension.journal if journal is None else chosen_journal(journal),
        inputs=inputs,
        policy=policy,
        scope=Scope(endpoint, principal or extension.principal),
        on_abandon=extension.on_abandon if on_abandon == "detach" else on_abandon,
    )


def _extension_of(client: Any) -> TasksExtension:
    """The extension that a client was made with; one with the defaults if it was made with another."""
    if isinstance(client, ClientSession):
        claims = client._result_claims.get(EXTENSION_ID, ())
        made: Sequence[object] = [getattr(claim.resolve, "extension", None) for claim in claims]
    else:
        made = getattr(client, "extensions", None) or getattr(client, "_extensions_arg", None) or ()
    return next((extension for extension in made if isinstance(extension, TasksExtension)), TasksExtension())


def _weakly(session: ClientSession) -> Callable[[], ClientSession]:
    reference = weakref.ref(session)

    def current() -> ClientSession:
        alive = reference()
        if alive is None:
            raise RuntimeError("the session is gone")
        return alive

    return current


def _listeners(on_update: OnUpdate | None, progress: ProgressFnT | None) -> tuple[OnUpdate, ...]:
    listeners = (on_update,) if on_update is not None else ()
    if progress is None:
        return listeners
    told = 0

    async def tell(task: Task) -> None:
        nonlocal told
        if task.status_message is not None:
            told += 1  # progress must increase, and how much there is to do is not known
            await progress(told, None, task.status_message)

    return (*listeners, tell)


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _client_being_made() -> object | None:
    """The client whose constructor asks for our claims; nobody's, if a host asks for them itself."""
    for frame in _callers():
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("mcp", "fastmcp", __package__):
            return None
        if is_client(owner := frame.f_locals.get("self")):
            return owner
    return None


def _progress_callback() -> ProgressFnT | None:
    """What the host gave to the call whose reply is being read."""
    found = next((frame.f_locals for frame in _callers() if frame.f_code is SEND_REQUEST), {})
    return found.get("progress_callback")
