"""A request of a host that waits for a call: kept patient, and answered in time.

A host gives up a call after a time of its own. Many hosts begin that time anew with each progress
notification, so one goes out every few seconds. For the others the bridge answers before the time is over:
the work goes on, and a later request has its result.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line, redact

from . import words
from .calls import Calls
from .host_request import HostRequest, Prompt, ask_by_reply
from .in_hand import Call
from .options import Options
from .own_names import OwnNames
from .related_task import without_task

__all__ = ["Serving", "as_rpc_error", "text_result"]

_BEAT_S: Final = 3.0
"""Seconds between progress notifications."""

_STEP: Final = 1e-6
"""By which progress is raised each time that the server has told none that is larger: it has to grow."""


class Serving:
    """Has requests of one host wait for calls.

    Args:
        calls: Of the host.
        names: Of the tools that the host is told to call later.
        options: Of the bridge.
    """

    def __init__(self, calls: Calls, names: OwnNames, options: Options) -> None:
        self._calls = calls
        self._names = names
        self._answer_within = options.answer_within
        self._line_for = options.line_for

    async def wait(
        self, call: Call, request: HostRequest, *, within_s: float | None = None, is_earlier: bool = False
    ) -> dict[str, Any]:
        """The result of a call for the host, or the answer in between.

        Args:
            call: In hand.
            request: Of the host.
            within_s: Seconds in place of those of the host, if they are fewer.
            is_earlier: Whether the call was there before the request, which the answer then says.

        Raises:
            MCPError: The call has ended in an error.
        """
        early_s = self._answer_within(request.host.name)
        limits = [one for one in (early_s or math.inf, within_s) if one is not None]
        asked: list[Prompt] = []
        with self._calls.waiting(call, request):
            await call.forget_answered()
            with anyio.move_on_after(min(limits)):
                async with self._beating(call, request):
                    while call.end is None:
                        asked = [one for one in call.unanswered if request.can_carry(one)]
                        # If the host cannot answer, the model is told at once, and only once.
                        if asked or (early_s and call.for_persons.keys() - call.told):
                            break
                        await call.wait_for_change()
            if call.end is None and not asked:
                await call.forget_answered()
            end = self._calls.end_for(call, request)
        if end is None and asked:
            return ask_by_reply(call.reference, asked)
        if end is None:
            call.told |= call.for_persons.keys()
            return self._answer_in_between(call)
        if isinstance(end, Exception):
            raise as_rpc_error(end, call.task_id)
        result = without_task(end)
        return _with_note(result, words.joined(call.tool)) if is_earlier else result

    def _answer_in_between(self, call: Call) -> dict[str, Any]:
        return text_result(
            words.interim(
                call.tool,
                call.reference,
                self._names.result_tool,
                call.status_message,
                [self._line_for(one) for one in call.for_persons],
                is_known=call.has_task,
            )
        )

    @asynccontextmanager
    async def _beating(self, call: Call, request: HostRequest) -> AsyncIterator[None]:
        """Have the host told every few seconds that the work goes on."""
        token = request.progress_token
        if token is None:
            yield
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._beat, call, request, token)
            try:
                yield
            finally:
                group.cancel_scope.cancel()

    async def _beat(self, call: Call, request: HostRequest, token: str | int) -> None:
        told, progress = None, 0.0
        while True:
            with anyio.move_on_after(_BEAT_S):
                while call.progress == told:
                    await call.wait_for_change()
            await call.forget_answered()
            message = call.status_message
            if call.for_persons:
                message = "A person has to answer: " + self._line_for(next(iter(call.for_persons)))
            told = call.progress
            said, total = told or (0.0, None)
            progress = max(said, progress + _STEP)
            await request.tell_progress(token, progress, total, None if not message else one_line(message))


def text_result(text: str, *, is_error: bool = False) -> dict[str, Any]:
    """A result of one text."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def as_rpc_error(error: Exception, task_id: str | None = None) -> MCPError:
    """The JSON-RPC error for the host: that of the server, or one of ours with a remedy.

    Args:
        error: In which a request has ended.
        task_id: Shortened in the message, if there is a task.
    """
    if task_id is None and isinstance(error, tasks.TasksClientError) and error.handle is not None:
        task_id = error.handle.reference["task_id"]
    match error:
        case tasks.TaskFailedError(code=int() as code, data=data):
            return MCPError(code=code, message=redact(_why(error), task_id), data=data)
        case tasks.SessionError(code=int() as code, remote_message=message, data=data):
            return MCPError(code=code, message=redact(message, task_id) or str(error), data=data)
        case tasks.TasksClientError():
            return MCPError(code=INTERNAL_ERROR, message=words.describe_error(error))
        case ValueError():
            return MCPError(code=INTERNAL_ERROR, message=str(error))
        case _:
            return MCPError(code=INTERNAL_ERROR, message=f"mcp-tasks bridge failed: {type(error).__name__}")


def _why(error: tasks.TaskFailedError) -> str:
    """The message of the server, with the task's status if that says more.

    A server on the SDK for TypeScript may say why in the status alone, and of the result that there is none.
    """
    said = error.status_message
    return error.message if not said or said in error.message else f"{error.message} ({said})"


def _with_note(result: dict[str, Any], note: str) -> dict[str, Any]:
    """A result with a text behind its content. Structured content stays as it is."""
    content = result.get("content")
    if not isinstance(content, list):
        return result
    return {**result, "content": [*content, {"type": "text", "text": note}]}
