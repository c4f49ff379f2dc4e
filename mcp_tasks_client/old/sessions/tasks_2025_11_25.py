"""The session of the generation before: MCP 2025-11-25, whose core tasks the client asks for.

Theory of operation
===================

There is a handshake, and a session that the server gives an ID, to which it may bind its tasks. So the ID
travels with each task, as its ``requestState``: another process goes on in that session, and a new one is
begun only for new calls, or where the server has forgotten the old one.

``tasks/get`` tells the status and nothing else. What belongs to a snapshot comes from elsewhere:

- an end, from ``tasks/result``, which then answers at once;
- questions, from requests that the server sends for the task, on whichever stream. For a task in
  ``input_required`` a ``tasks/result`` is kept waiting, because that is where they come; but not while an
  answer leaves, with which the task goes on: the server would hand the next question to what waits, though
  this process were killed by then;
- what the server tells by itself is a hint, for it promises nothing: polls keep their pace.

Of a task that was cancelled no question is answered any more: one server loses its session by it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled
from mcp_types import Tool

from ..errors import SessionError
from ..inputs import Inputs
from ..params import call_params
from ..receiver import Receiver
from ..wire import (
    PROTOCOL_VERSION,
    TERMINAL_STATUSES,
    CallReply,
    Created,
    JSONObject,
    MalformedError,
    Returned,
    RpcError,
    Task,
    read_task,
)
from .answering import Answering
from .base import INVALID_PARAMS, Leaving, Session, TaskRef, ToolCall
from .catalogue import Catalogue
from .faults import Faults, denies_session
from .hearing import Hearing
from .limits import Limits
from .listing import tasks_of_call
from .peer import Peer, Told
from .peers import Peers
from .shapes_2025_11_25 import CORE_TASKS_VERSION, Memo, created_task, ended, snapshot
from .task_wish import TaskWish

__all__ = ["CoreTasksSession"]

_MOST_REFUSALS: Final = 6
"""Times that the result of a task may be refused that is completed. Then the refusal is the result."""

_MOST_DENIALS: Final = 3
"""The same of one that has failed, where the refusal may be about the session."""

_TTL_SPREAD_MS: Final = 3_600_000
"""Milliseconds that a call may want its task to be kept for besides, by which that is known again."""

_LISTING_S: Final = 10.0
"""Seconds that a server's list of its tasks may take to come, at most."""

_ENDS: Final = frozenset({"completed", "failed"})


class CoreTasksSession(Session):
    """A server of 2025-11-25.

    Args:
        peer: Makes a session at it: a new one, or one that there was before, by its ID.
        endpoint: The server's name in the journal.
        inputs: Answers what the server asks for a call that is no task.
        client_info: ``name`` and ``version`` of the host.
        limits: Of what is sent and read.
        wish: Whether to ask for tasks.
        receiver: Runs what the server wants as a task; ``None`` if nobody does, and nothing is declared.
    """

    def __init__(
        self,
        peer: Callable[[str | None, Told], Peer],
        *,
        endpoint: str,
        inputs: Inputs,
        client_info: JSONObject,
        limits: Limits,
        wish: TaskWish,
        receiver: Receiver | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._wish = wish
        self._limits = limits
        self._poll_slots = anyio.Semaphore(limits.tasks_in_flight)
        self._call_slots = anyio.Semaphore(limits.calls_in_flight)
        self._catalogue = Catalogue(self._look_up, endpoint)
        self._hearing = Hearing(inputs, limits.task_timeout_s, self._catalogue.forget_tools, receiver)
        self._receiver = receiver
        self._receives = receiver.capabilities if receiver is not None else {}
        capabilities = {**inputs.capabilities, **self._receives}
        introduction: JSONObject = {"capabilities": capabilities, "clientInfo": client_info}
        self._peers = Peers(peer, introduction, self._hearing, self._begun, limits.task_timeout_s)
        self._answering = Answering(self._hearing, self._peers, limits.task_timeout_s)

    def __repr__(self) -> str:
        return f"<CoreTasksSession {self._endpoint}>"

    @property
    def endpoint(self) -> str:
        """As given."""
        return self._endpoint

    @property
    def calls_in_flight(self) -> int:
        """How many ``tools/call`` it sends at once, at most."""
        return self._limits.calls_in_flight

    async def tool(self, name: str) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name.

        Raises:
            SessionError: The server could not be asked.
        """
        return await self._catalogue.description(name)

    def listed(self, name: str) -> Tool | None:
        """The same, where the list is there."""
        return self._catalogue.listed(name)

    def forget_tools(self) -> None:
        """Have the next question about a tool fetch the list again."""
        self._catalogue.forget_tools()

    async def connect(self) -> Peer:
        """The session that new calls are made in, begun if there is none.

        Raises:
            SessionError: The server does not want to, or does not speak this generation.
        """
        return await self._peers.now()

    async def call(self, call: ToolCall, leaving: Leaving = checkpoint) -> CallReply:
        """Send ``tools/call`` once, with a wish for a task where the tool allows it.

        Raises:
            SessionError: No result. ``not_executed`` is set if nothing can have happened.
        """
        params = call_params(call.name, call.arguments)
        if call.meta:
            params["_meta"] = dict(call.meta)
        progress, token = self._hearing.progress, None
        async with self._call_slots:
            # Both right before it goes: those of another session are forgotten, and so is what has changed.
            await self._peers.now()
            await self._catalogue.to_call(call.name)
            peer = await self._peers.now()
            if self._as_task(call.name):
                params["task"] = {"ttl": Memo.read(call.memo).ttl_ms or self._wish.ttl_ms}
                token = progress.announce(params, peer.session_id, ours=not peer.retracts)
            await leaving()
            try:
                try:
                    result = await self._called(peer, params)
                except SessionError as error:
                    if not (error.not_executed and peer.denied(error)):
                        raise
                    # To this very request there was no such session, so that nothing can have happened.
                    progress.drop(token, peer.session_id)
                    peer = await self._peers.now()
                    if token is not None:
                        progress.announce(params, peer.session_id, ours=False)
                    result = await self._called(peer, params)
                task = created_task(result)
                if task is None:
                    return Returned(result)
                progress.expect(token, task["taskId"], peer.session_id)
                return Created(self._read(task, peer, Faults("tools/call")), generation=CORE_TASKS_VERSION)
            finally:
                progress.drop(token, peer.session_id)

    async def _called(self, peer: Peer, params: JSONObject) -> JSONObject:
        return await peer.request("tools/call", params, self._limits.call_read_timeout_s)

    async def before_call(self) -> str | None:
        """The session that the next call is made in, if its tasks are listed, and what to know its task by.

        Raises:
            SessionError: There is none, and none could be begun.
        """
        peer = await self._peers.now()
        if not self._peers.lists_tasks:
            return None
        # No other call asks for the same time-to-live, so that it tells whose a task is.
        ttl_ms = self._wish.ttl_ms + secrets.randbelow(_TTL_SPREAD_MS)
        return str(Memo(session_id=peer.session_id, ttl_ms=ttl_ms))

    async def created_since(self, memo: str | None, since: float) -> Sequence[Created]:
        """The task that bears the time-to-live of a call, if any does; or all that the session lists.

        Raises:
            SessionError: The list could not be had in time, or has no end.
        """
        limit_s = min(2 * self._limits.task_timeout_s, _LISTING_S)
        with anyio.move_on_after(limit_s):
            return await self._listed(None if memo is None else Memo.read(memo), since)
        raise Faults("tasks/list").overdue(limit_s)

    async def _listed(self, memo: Memo | None, since: float) -> Sequence[Created]:
        if memo is not None and memo.session_id is not None:
            await self._peers.adopt(memo.session_id).look_again()
        peer = await (self._peers.now() if memo is None else self._peers.of(memo.session_id))
        # What another session lists is another's.
        if self._peers.lists_tasks if memo is None else peer.session_id == memo.session_id:
            return await tasks_of_call(peer, memo, since, self._limits.task_timeout_s)
        return ()

    async def get(self, ref: TaskRef) -> Task:
        """Send ``tasks/get`` once, and ask for whatever else belongs to the snapshot.

        Raises:
            SessionError: No snapshot; its code is -32602 if the server does not know the task.
        """
        memo = Memo.read(ref.request_state)
        self._hearing.progress.expect(memo.progress, ref.task_id, memo.session_id)
        looked = self._hearing.looking(ref.task_id)
        with self._obeying(ref):
            async with self._poll_slots:
                sent_at = anyio.current_time()
                peer, raw = await self._peers.ask("tasks/get", ref)
                took_s = anyio.current_time() - sent_at
        await checkpoint_if_cancelled()  # of what was let go of, others may know more by now
        await self._attended(peer)
        self._hearing.retrievals.looked(ref.task_id, took_s)
        self._hearing.retrievals.answered_in(peer, ref.task_id)
        faults = Faults("tasks/get", ref.task_id)
        try:
            task = snapshot(raw)
        except MalformedError as error:
            raise faults.malformed(str(error)) from None
        status = task.get("status")
        looked(status == "input_required")
        self._answering.recall(peer, ref)
        if status in _ENDS:
            task = ended(task, await self._end(peer, ref, task))
        elif status == "input_required" or (status != "cancelled" and self._hearing.asks(ref.task_id)):
            # A server may say that it goes on as soon as one of two questions is answered.
            task["status"] = "input_required"
            self._hearing.expects(peer, ref.task_id, task)  # so that what is going to wait can be journaled
            task["inputRequests"] = await self._answering.questions(peer, ref, sent_at)
        elif status not in TERMINAL_STATUSES and memo.session_id == peer.session_id:
            await self._hearing.retrievals.free(peer, ref.task_id, memo.retrieval)
            self._hearing.works_on(peer, ref.task_id)
        return self._read(task, peer, faults)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Answer what the server has asked for a task.

        Raises:
            SessionError: Not all of it was answered. ``retryable`` if the server did not ask just now.
        """
        with self._obeying(ref):
            await self._answering.update(ref, answers)

    def takes_each_answer(self, ref: TaskRef) -> bool:
        """It does, as each of its questions is a request, with a time limit of its own."""
        return True

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once. From here on none of its questions is answered.

        Raises:
            SessionError: No acknowledgement; its code is -32602 if the task is over already.
        """
        self._hearing.give_up(ref.task_id)
        with self._obeying(ref):
            await self._hearing.retrievals.told_back(ref.task_id)
            await self._peers.ask("tasks/cancel", ref)

    def may_agree(self, ref: TaskRef) -> bool:
        """It does not: whatever a server of this generation says by itself, it has not promised."""
        return False

    def told(self, task_id: str) -> Task | None:
        """What it asks and what waits for it, as far as there is anything."""
        return self._hearing.hints.latest(task_id)

    def attend(self, ref: TaskRef, *, inherited: bool) -> None:
        """Have nothing wait that nobody hears: the server would hand its next question to that."""
        if inherited:
            self._hearing.retrievals.drop(ref.task_id)
        self._hearing.background.begin(self._answering.attend, ref, self._poll_slots)

    def let_go(self, task_id: str) -> anyio.Event | None:
        """Keep nothing of a task that nobody observes any more, but what it has asked."""
        return self._hearing.leave(task_id)

    async def retire(self) -> None:
        """Take back what waits, hear it out, and answer what the server wants to know by then."""
        await self._hearing.retrievals.retire()
        if self._receiver is not None:
            await self._receiver.retire()

    async def watch(self, heard: Callable[[Task], None]) -> None:
        """Keep the streams open on which the server speaks, and tell what it says. Never returns."""
        self._hearing.hints.heard = heard
        try:
            await self._hearing.run(self._peers.adopt)
        finally:
            self._hearing.hints.heard = None

    async def aclose(self) -> None:
        """Nothing: what it travels over is somebody else's, and a session that has tasks is not ended."""

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    async def _begun(self, peer: Peer) -> None:
        self._catalogue.forget_tools()  # the last session's may not be this one's
        await self._attended(peer)

    async def _attended(self, peer: Peer) -> None:
        """Have a server be heard before it is let ask: it looks at tasks of ours on another stream."""
        if self._receives:
            await self._hearing.streams.attended(peer)

    @contextmanager
    def _obeying(self, ref: TaskRef) -> Iterator[None]:
        """Have nothing else be asked of a task either, for as long as the server wants to be left alone."""
        try:
            yield
        except SessionError as error:
            if error.retry_after_s is not None:
                self._hearing.retrievals.pauses.quiet(ref.task_id, error.retry_after_s)
            raise

    def _as_task(self, name: str) -> bool:
        return self._wish.as_task(name, self._catalogue.listed(name), self._peers.makes_tasks)

    async def _look_up(self, method: str, params: JSONObject) -> JSONObject:
        if method == "server/discover":
            return {"supportedVersions": [PROTOCOL_VERSION]}  # what is spoken was agreed on in the handshake
        return await self._peers.ask_any(method, params)

    def _read(self, task: JSONObject, peer: Peer, faults: Faults) -> Task:
        task_id = str(task.get("taskId"))
        memo = self._hearing.hints.memo(peer, task_id)
        said = self._hearing.seen(task_id).get("_meta")  # with its creation, and not again
        progress = self._hearing.progress.of(task_id)
        kept = {name: value for name, value in (("_meta", said), ("progress", progress)) if value}
        task = {**kept, **task, "requestState": str(memo)}
        try:
            read = read_task(task)
        except MalformedError as error:
            raise faults.malformed(str(error)) from None
        if read.terminal:
            if read.status == "cancelled":
                self._hearing.give_up(read.task_id)  # whoever has cancelled it
            self._hearing.forget(read.task_id)
        else:
            self._hearing.saw(peer, task)
        return read

    async def _end(self, peer: Peer, ref: TaskRef, task: JSONObject) -> JSONObject | RpcError:
        """What ``tasks/result`` says of a task that is over."""
        retrieved = self._hearing.retrievals.reply(ref.task_id)
        if retrieved is not None:
            return retrieved
        try:
            return await self._peers.ask_in(peer, "tasks/result", ref)
        except SessionError as error:
            if not _about_the_call(error) or peer.lost:
                raise
            completed = task.get("status") == "completed"
            if completed and error.code == INVALID_PARAMS:
                raise  # it has forgotten the task meanwhile
            # What is completed has a result, which a server that has trouble to find it may find later.
            # And one of several servers may have denied the session, where nobody sees the status.
            said = RpcError(error.code, error.remote_message, error.data)
            denied = error.http_status is None and denies_session(said)
            most = _MOST_REFUSALS if completed else _MOST_DENIALS if denied else 0
            if most and not self._hearing.retrievals.failures.refused_too_often(ref.task_id, most):
                error.retryable = True
                raise
            return said


def _about_the_call(error: SessionError) -> bool:
    """Whether it is how the call itself ended, and not how it was asked for."""
    return error.code is not None and error.http_status in (None, 200)
