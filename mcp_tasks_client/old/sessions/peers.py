"""The sessions at one server of 2025-11-25: the one that new calls are made in, and those of before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy
from typing import Final

import anyio

from ..errors import RemoteProtocolError, SessionError
from ..wire import TERMINAL_STATUSES, JSONObject
from .base import INVALID_PARAMS, TaskRef
from .faults import CREDENTIAL_STATUSES, Faults
from .hearing import Hearing
from .peer import SESSION_STATUSES, Peer, Told
from .shapes_2025_11_25 import CORE_TASKS_VERSION, HOSTS_OWN, Memo

__all__ = ["Peers"]

_MOST_IN_VAIN: Final = 1
"""Looks for a lost session that cannot be reached, at most, before a task is asked for in another one."""

_MOST_WITH_WORDS: Final = 5
"""The same, where whoever is there says something, which is no denial."""


class Peers:
    """Begins sessions, and goes back to those that there were.

    Args:
        make: Makes a peer: of a new session, or of one that there was before, by its ID.
        introduction: What is said of us to begin one.
        hearing: Takes what the server says in any of them.
        begun: Called when a new one has begun.
        timeout_s: Seconds of silence after which a beginning is given up; twice as many in all.

    Attributes:
        makes_tasks: Whether the server makes tasks of calls, as it said last.
        lists_tasks: Whether it lists them.
    """

    def __init__(
        self,
        make: Callable[[str | None, Told], Peer],
        introduction: JSONObject,
        hearing: Hearing,
        begun: Callable[[Peer], Awaitable[None]],
        timeout_s: float,
    ) -> None:
        self.makes_tasks = False
        self.lists_tasks = False
        self._make = make
        self._introduction = introduction
        self._hearing = hearing
        self._begun = begun
        self._timeout_s = timeout_s
        self._beginning = anyio.Lock()
        self._now: Peer | None = None
        self._adopted: dict[str, Peer] = {}
        self._failures = 0
        self._failure: SessionError | None = None

    def is_now(self, peer: Peer) -> bool:
        """Whether it is the session that new calls are made in."""
        return peer is self._now

    async def now(self) -> Peer:
        """The session that new calls are made in, begun if there is none.

        Raises:
            SessionError: The server does not want to, or does not speak this generation.
        """
        failures = self._failures
        async with self._beginning:
            if self._failures != failures and self._failure is not None:
                raise copy(self._failure)  # of the attempt that we waited for
            if self._now is None or self._now.lost:
                peer = self._make(None, self._hearing.told)
                try:
                    said = await self._introduced(peer)
                except SessionError as error:
                    self._failures, self._failure = self._failures + 1, error
                    raise
                self.lists_tasks = _offers(said, "tasks", "list")
                self.makes_tasks = _offers(said, "tasks", "requests", "tools", "call")
                if self._now is not None:
                    self._hearing.lose(self._now)
                    self._keep(self._now)
                self._now = peer
                await self._begun(peer)
            return self._now

    async def of(self, session_id: str | None) -> Peer:
        """The session of that ID, which may be one of another process; the present one if it is lost.

        Raises:
            SessionError: The present one could not be begun.
        """
        peer = self.adopt(session_id) if session_id else None
        return peer if peer is not None and not peer.lost else await self.now()

    def adopt(self, session_id: str) -> Peer:
        """The session of that ID, which may be the present one, lost or not."""
        if self._now is not None and self._now.session_id == session_id:
            return self._now
        peer = self._adopted.get(session_id)
        if peer is None:
            peer = self._make(session_id, self._hearing.told)
            self._keep(peer)
        return peer

    def _keep(self, peer: Peer) -> None:
        # Of those that are lost only the latest is kept: a host's session is held by what was made of it.
        self._adopted = {name: one for name, one in self._adopted.items() if not one.lost}
        if peer.session_id is not None:
            self._adopted[peer.session_id] = peer

    # ── requests about tasks ──────────────────────────────────────────────────────────────────

    async def ask(self, method: str, ref: TaskRef) -> tuple[Peer, JSONObject]:
        """Send one of ``tasks/*``, in the task's own session, or in the present one if that is lost.

        Returns:
            Where it was answered, and the answer.

        Raises:
            SessionError: It was not.
        """
        own = Memo.read(ref.request_state).session_id
        before = self._hearing.look_back(ref.task_id) if method == "tasks/get" else None
        if own is not None and self.adopt(own).lost:
            before = self.adopt(own)  # somebody else has found it lost
        back = None if before is None else await self._where_asked(before, method, ref)
        if back is not None:
            return back
        peer = await self.of(own)
        try:
            raw = await self.ask_in(peer, method, ref)
            if self._hearing.was_asked_in(peer, ref.task_id):
                self._hearing.find(peer)
            return peer, raw
        except SessionError as error:
            unknown, lost = error.code == INVALID_PARAMS, peer.lost  # another task may find it again
            if lost:
                self._hearing.lose(peer)
            # A server that was upgraded since may say so of a session of which it has never heard.
            elif not unknown or self.is_now(peer):
                if unknown and own not in (None, peer.session_id):
                    return await self._back_in(own, method, ref, error)
                raise
            found = error
        other = await self.now()
        try:
            raw = await self.ask_in(other, method, ref)
        except SessionError as again:
            if again.code == INVALID_PARAMS and lost and own not in (None, other.session_id):
                return await self._back_in(own, method, ref, again)
            raise again from found
        if own is None or raw.get("status") in TERMINAL_STATUSES:
            return other, raw
        return await self._where_asked(self.adopt(own), method, ref) or (other, raw)

    async def ask_in(self, peer: Peer, method: str, ref: TaskRef) -> JSONObject:
        """Send one of ``tasks/*`` in this session.

        Raises:
            SessionError: It was not answered.
        """
        params = {"taskId": ref.task_id}
        request = peer.request(method, params, self._timeout_s, task_id=ref.task_id)
        return await self._in_time(method, request, ref.task_id)

    async def ask_any(self, method: str, params: JSONObject) -> JSONObject:
        """Send a request that is about no task, in the present session.

        Raises:
            SessionError: It was not answered.
        """
        peer = await self.now()
        return await self._in_time(method, peer.request(method, params, self._timeout_s))

    async def _where_asked(self, peer: Peer, method: str, ref: TaskRef) -> tuple[Peer, JSONObject] | None:
        """Ask once more in a session that is lost, if it has asked something: only there it is answered."""
        if peer.lost:
            self._hearing.lose(peer)  # whoever begins another one has yet to say so
        if not (self._hearing.was_asked_in(peer, ref.task_id) or self._asked_before(ref)):
            return None
        peer.lost = False
        try:
            raw = await self.ask_in(peer, method, ref)
        except anyio.get_cancelled_exc_class():
            peer.lost = True
            raise
        except SessionError as error:
            if peer.lost or error.code == INVALID_PARAMS:
                return None
            peer.lost = True  # as far as is known; one that is out of reach is not waited for for ever
            spoke = error.code is not None or error.retry_after_s is not None
            most = _MOST_WITH_WORDS if spoke else _MOST_IN_VAIN
            if self._hearing.asked(ref.task_id).looks_in_vain(peer) > most:
                return None
            raise
        self._hearing.find(peer)
        self._keep(peer)
        return peer, raw

    def _asked_before(self, ref: TaskRef) -> bool:
        """Whether a process before us was asked something for a task that has no answer."""
        memo = Memo.read(ref.request_state)
        open_keys = {one.key for one in ref.questions if one.stage != "acknowledged"}
        return not self._hearing.given_up(ref.task_id) and not open_keys.isdisjoint(memo.asked)

    async def _back_in(
        self, session_id: str, method: str, ref: TaskRef, unknown: SessionError
    ) -> tuple[Peer, JSONObject]:
        """Ask once more in a task's own session, before the task is taken for lost with it."""
        peer = self.adopt(session_id)
        peer.lost = False  # unless it is said again; one of the host's own that is gone stays so
        lost = peer.lost
        try:
            raw = await self.ask_in(peer, method, ref)
            self._hearing.find(peer)
            return peer, raw
        except SessionError as error:
            # Another task may find it lost, or again, at the same time: it must have been said to this one.
            lost |= peer.lost and error.not_executed and error.http_status in SESSION_STATUSES
            if not lost and error.code != INVALID_PARAMS:
                raise  # which says nothing of the task
        if lost:
            unknown.remote_message += f" ({_how_it_ended(session_id)})"
        raise unknown

    async def _in_time(
        self, method: str, request: Awaitable[JSONObject], task_id: str | None = None
    ) -> JSONObject:
        # Bounded as a whole: a server that drips, byte by byte, would hold it for ever.
        limit_s = 2 * self._timeout_s
        with anyio.move_on_after(limit_s):
            return await request
        raise Faults(method, task_id).overdue(limit_s)

    async def _introduced(self, peer: Peer) -> JSONObject:
        try:
            return await self._in_time("initialize", peer.initialize(self._introduction, self._timeout_s))
        except SessionError as error:
            error.not_executed = True
            if error.retryable or error.http_status in CREDENTIAL_STATUSES:
                raise
            raise RemoteProtocolError(
                f"The server does not speak MCP {CORE_TASKS_VERSION}: {error} If it was upgraded since, a "
                "task that was made in that version is out of reach, and only new calls can be made.",
                not_executed=True,
                http_status=error.http_status,
            ) from error


def _offers(result: JSONObject, *names: str) -> bool:
    """Whether the server declares a capability."""
    found: object = result.get("capabilities")
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found is not None


def _how_it_ended(session_id: str) -> str:
    """What became of a session; one whose name only we have given it was the host's own."""
    if session_id.startswith(HOSTS_OWN):
        return "the session that the task was made in has ended: one of the host's own cannot be had again"
    return "the server has ended the session that the task was made in"
