"""The tools that the bridge lists beside those of the server: the way back to a call that goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import mcp_tasks_client as tasks

from . import words
from .calls import Calls
from .host_request import HostRequest
from .own_names import OwnNames
from .serving import Serving, text_result

__all__ = ["TaskTools"]

_MOST_LISTED: Final = 50
_LONGEST_WAIT_S: Final = 86_400.0

_REFERENCE: Final = {"type": "string", "description": "As an earlier answer has named it."}


class TaskTools:
    """``task_result``, ``task_list`` and ``task_cancel``, for one host.

    Args:
        names: Of the tools.
        inbox: Of the host.
        calls: Of the host.
        serving: Has a request wait for a call.
        line_for: The line by which a person answers a question in a terminal, by the question's ID.
    """

    def __init__(
        self,
        names: OwnNames,
        inbox: tasks.Inbox,
        calls: Calls,
        serving: Serving,
        line_for: Callable[[str], str],
    ) -> None:
        self._names = names
        self._inbox = inbox
        self._calls = calls
        self._serving = serving
        self._line_for = line_for

    def listed(self) -> list[dict[str, Any]]:
        """The descriptions, for a list of tools."""
        wait_s = {"type": "number", "description": "Seconds to wait, if it still runs.", "minimum": 0}
        return [
            _describe(
                self._names.result_tool,
                "Wait for the result of a call that was answered with a reference, and return the result.",
                {"reference": _REFERENCE, "wait_s": wait_s},
                read_only=True,
            ),
            _describe(
                self._names.list_tool,
                "List the calls that still run, and those whose result is waiting.",
                {},
                read_only=True,
            ),
            _describe(
                self._names.cancel_tool,
                "Ask the server to cancel a call. The server may finish it all the same.",
                {"reference": _REFERENCE},
                read_only=False,
            ),
        ]

    async def call(self, tool: str, arguments: Mapping[str, Any], request: HostRequest) -> dict[str, Any]:
        """Call one of the tools.

        Raises:
            TasksClientError: The journal could not be read, or the server could not be told.
            MCPError: The call that is asked for has ended in an error.
        """
        if tool == self._names.list_tool:
            others = [(one.reference, one.tool, one.end is not None) for one in self._calls.without_record()]
            return text_result(words.listed(await self._list(), others))
        reference, wait_s = arguments.get("reference"), arguments.get("wait_s")
        call = await self._calls.by_reference(reference) if isinstance(reference, str) else None
        if call is None:
            text = words.no_such_call(str(reference), self._names.list_tool)
            return text_result(text, is_error=True)
        if tool == self._names.result_tool:
            within_s = (
                float(min(wait_s, _LONGEST_WAIT_S))
                if isinstance(wait_s, int | float) and wait_s >= 0
                else None
            )
            return await self._serving.wait(call, request, within_s=within_s)
        if await self._calls.cancel(call):
            return text_result("The server was asked to cancel the call. It may finish it all the same.")
        told = "There is nothing to cancel: the call has ended."
        if call.handle is not None:
            told += f' Call {self._names.result_tool} with reference "{call.reference}" for its result.'
        return text_result(told)

    async def _list(self) -> list[tuple[tasks.TaskRecord, list[str]]]:
        records = await self._calls.records(_MOST_LISTED)
        questions = await self._inbox.questions()
        return [
            (
                record,
                [self._line_for(one.question_id) for one in questions if one.record_id == record.record_id],
            )
            for record in records
        ]


def _describe(name: str, text: str, properties: dict[str, Any], *, read_only: bool) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if "reference" in properties:
        schema["required"] = ["reference"]
    annotations = {"readOnlyHint": read_only, "destructiveHint": not read_only, "openWorldHint": False}
    return {"name": name, "description": text, "inputSchema": schema, "annotations": annotations}
