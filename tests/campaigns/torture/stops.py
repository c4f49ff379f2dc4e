"""Named stops: a process holds one of its calls there, until it is killed with SIGKILL."""

from __future__ import annotations

from typing import Final, Literal, NoReturn, TypeAlias

import anyio

from mcp_tasks_client import Observer, Point, TaskRecord

from .evidence import Log

__all__ = ["CALL_SENT", "IN_THE_BLOCK", "RESULT_COMMITTED", "STOPS", "StopAt", "Where"]

Where: TypeAlias = tuple[Literal["before", "after"], Point]

CALL_SENT: Final = "call sent"
"""The reply to ``tools/call`` has come, and nobody has looked at it. No later process knows of the task."""

RESULT_COMMITTED: Final = "result committed"
"""The host was told of the end, and has not got the result. Its ``on_update`` stops there."""

IN_THE_BLOCK: Final = "in the block"
"""The host has got the result, in a block that it does not leave."""

STOPS: Final[dict[str, Where | None]] = {
    CALL_SENT: ("after", "send: tools/call"),
    "task created": ("after", "commit: TaskCreated"),
    "question open": ("before", "send: a question to the host"),
    "answer committed": ("after", "commit: AnswerReady"),
    "update sent": ("after", "send: tasks/update"),
    RESULT_COMMITTED: None,
    IN_THE_BLOCK: None,
}
"""The names of the stops, and the point of each that is one: the host itself stops at the others."""


class StopAt(Observer):
    """Holds one call at a stop.

    Args:
        stop: The name of the stop.
        intent: Which call; also its label.
        log: Where the process writes that it has come to the stop.
    """

    def __init__(self, stop: str, intent: str, log: Log) -> None:
        self.stop = stop
        self.intent = intent
        self._log = log

    async def reach(self) -> NoReturn:
        """Write that the stop is reached, and wait to be killed."""
        self._log.write("reached", intent=self.intent, text=self.stop)
        await anyio.sleep_forever()
        raise AssertionError("for ever is over")

    async def before(self, point: Point, record: TaskRecord | None) -> None:
        await self._pass(("before", point), record)

    async def after(self, point: Point, record: TaskRecord | None) -> None:
        await self._pass(("after", point), record)

    async def _pass(self, where: Where, record: TaskRecord | None) -> None:
        if where == STOPS[self.stop] and record is not None and record.label == self.intent:
            await self.reach()
