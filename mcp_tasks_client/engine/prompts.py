"""The questions of one call before the host: elicitations one after another, everything else at once.

A person has one form before them at a time. A question to a program (sampling, roots) does not wait for
that, since the server may have set a time limit of its own. A question that the server has withdrawn
stays before the person until it is answered or the call ends; its answer is not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import anyio

from ..aio.host_code import was_cancelled_from_inside
from ..aio.uncut import is_being_cancelled
from ..errors import DrivenElsewhereError
from ..machine.actions import Ask
from ..machine.events import AnswerReady, AnswerUnavailable, Event
from ..questions.kinds import is_for_person
from ..questions.question import Question, asked_under, question_id
from .answering import Answering
from .call_log import log_late_answer, log_left
from .drive import OpenPrompts
from .instructions import Instructions
from .live_call import LiveCall
from .owning import Owning
from .performer import Performer
from .requests import Requests, cut_from_inside

__all__ = ["Prompts"]


class Prompts:
    """A task group for the questions of one call. Leaving it waits for those that are before the host."""

    def __init__(
        self,
        call: LiveCall,
        requests: Requests,
        owning: Owning,
        performer: Performer,
        instructions: Instructions,
        answering: Answering,
    ) -> None:
        assert call.drive is not None, "the questions of a call are put while it is driven"
        self._call = call
        self._drive = call.drive
        self._requests = requests
        self._owning = owning
        self._performer = performer
        self._instructions = instructions
        self._answering = answering
        self._open = OpenPrompts()
        self._tasks = anyio.create_task_group()
        self._elicitations: deque[Ask] = deque()
        self._asks_persons = False  # whether a task takes elicitations one after another
        self._parks = False  # whether a question has no answer: the call parks after the others
        self._rests = anyio.Event()  # set when no question is before the host
        self._running = 0  # how many tasks there are, also for answers that are being sent

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._drive.open_prompts = self._open
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            self._tasks.cancel_scope.cancel()
        try:
            # Without the block's own exception, which would come back wrapped in a group.
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._drive.open_prompts = None

    @property
    def active(self) -> bool:
        """Whether any question is before the host, waits for its turn, or has its answer sent."""
        return self._running > 0

    def put(self, asks: tuple[Ask, ...]) -> None:
        """Put questions to the host, each when it is its turn."""
        for ask in asks:
            if is_for_person(ask.request):
                self._elicitations.append(ask)
            else:
                self._start(self._put, ask)
        if self._elicitations and not self._asks_persons:
            self._asks_persons = True
            self._start(self._put_in_turn)

    def _start(self, work: Callable[..., Awaitable[None]], *args: Ask) -> None:
        async def run() -> None:
            # A scope of its own, so that a question can be withdrawn while the call goes on.
            with anyio.CancelScope() as scope:
                self._open.scopes.add(scope)
                try:
                    await work(*args)
                except DrivenElsewhereError:
                    self._call.ring()  # the driver looks on
                except anyio.get_cancelled_exc_class():
                    if not was_cancelled_from_inside():
                        raise
                    self._park(cut_from_inside())  # it would end the task group, and nobody would hear of it
                except Exception as error:
                    self._park(error)
                finally:
                    self._open.scopes.discard(scope)
                    self._running -= 1

        self._running += 1
        self._tasks.start_soon(run)

    def _park(self, error: Exception) -> None:
        if self._drive.error is None:  # else the call is parked, or is driven anew
            self._call.park(error)

    async def _put_in_turn(self) -> None:
        try:
            while self._elicitations and not (self._parks or self._call.over):
                await self._put(self._elicitations.popleft())
        finally:
            if not self._parks:
                self._elicitations.clear()
            self._asks_persons = False

    async def _put(self, ask: Ask) -> None:
        """Put one question to the host, and take the step that its answer is."""
        call = self._call
        while True:
            if not await self._may_ask(ask):
                return
            prompt = anyio.CancelScope()
            self._begin_work(ask.key, prompt)
            try:
                event: Event | None = None
                with prompt, self._withdrawing_in_doubt(prompt):
                    event = await self._requests.ask(call, ask, self._question_of(ask))
                if (prompt.cancel_called or is_being_cancelled()) and not _is_an_answer(event):
                    continue  # it was answered elsewhere, or the lease was not renewed in time
                if event is None:
                    log_left(call.record)
                    return
                if isinstance(event, AnswerReady):
                    # No checkpoint between the return of the callback and the commit of the answer.
                    await self._performer.step(call, event)
                    if call.answer_to(ask.key) not in (None, event.answer):
                        log_late_answer(call.record)
                    return
                break
            finally:
                self._end_work(ask.key, prompt)
        # The call parks for want of an answer. A person with another question may finish that first.
        self._parks = True
        if self._open.by_key:
            await self._rests.wait()
        await self._performer.step(call, event)
        self._parks = call.error is not None
        if not self._parks:
            self.put(())  # the server has withdrawn that question, and others wait for their turn

    async def _may_ask(self, ask: Ask) -> bool:
        """Look, right before a question is put to the host, whether it is still to be put."""
        call = self._call
        while True:
            await self._owning.wait_until_sure(call)
            await self._instructions.look(call)
            if call.over or is_being_cancelled():
                return False  # an instruction has parked the call, or cancelled it
            if not call.is_open(ask.key, ask.refusals):
                # Answered by an earlier run, or withdrawn by the server, which may ask it again.
                if call.answer_to(ask.key) is None:
                    withdrawn = AnswerUnavailable(key=ask.key, why="withdrawn", refusals=ask.refusals)
                    await self._performer.step(call, withdrawn)
                return False
            if not self._owning.is_in_doubt(call):
                return True

    @contextmanager
    def _withdrawing_in_doubt(self, prompt: anyio.CancelScope) -> Iterator[None]:
        """Withdraw a question once another process may put it to its own host."""
        if not self._call.journaled:
            yield
            return
        watching = anyio.CancelScope()

        async def watch() -> None:
            with watching:
                await self._owning.wait_for_withdrawal(self._call)
                prompt.cancel()

        self._tasks.start_soon(watch)
        try:
            yield
        finally:
            watching.cancel()

    def _begin_work(self, key: str, prompt: anyio.CancelScope) -> None:
        if not self._open.by_key:
            self._rests = anyio.Event()
        self._call.begin_asking(self._open, key, prompt)

    def _end_work(self, key: str, prompt: anyio.CancelScope) -> None:
        self._call.end_asking(self._open, key, prompt)
        if not self._open.by_key:
            self._rests.set()

    def _question_of(self, ask: Ask) -> Question | None:
        """The question as the callback of the host sees it, which another process may answer meanwhile."""
        record = self._call.record
        asked = asked_under(record, ask.key)
        name = None if asked is None else question_id(record.record_id, asked)
        return next((q for q in self._answering.open_questions(record) if q.question_id == name), None)


def _is_an_answer(event: Event | None) -> bool:
    """True if an event is an answer, and not the reaction of a callback to its cancellation."""
    return isinstance(event, AnswerReady) and event.answer.get("action") != "cancel"
