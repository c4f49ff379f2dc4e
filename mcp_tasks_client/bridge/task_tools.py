"""The tools that the bridge lists beside those of the server: the way back to a call that goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import mcp_tasks_client as tasks

from . import words
from .calls import Calls
from .host_request import HostRequest
from .serving import Serving, text_result

__all__ = ["TaskTools", "choose_prefix"]

_NAMES: Final = ("task_result", "task_list", "task_cancel")
_MOST_LISTED: Final = 50
_LONGEST_WAIT_S: Final = 86_400.0
_PREFIX: Final = "mcp_tasks_"

_REFERENCE: Final = {"type": "string", "description": "As an earlier answer has named it."}


def choose_prefix(taken: Collection[str]) -> str:
    """The prefix with which none of the names is one of the server's tools."""
    prefix = ""
    while any(prefix + name in taken for name in _NAMES):
        prefix += _PREFIX
    return prefix


class TaskTools:
    """``task_result``, ``task_list`` and ``task_cancel``, for one host.

    Args:
        inbox: Of the host.
        calls: Of the host.
        prefix: Before each name.
    """

    def __init__(self, inbox: tasks.Inbox, calls: Calls, prefix: str) -> None:
        self._inbox = inbox
        self._calls = calls
        self._prefix = prefix

    @property
    def result_tool(self) -> str:
        """The name of the tool that waits for a result."""
        return f"{self._prefix}task_result"

    @property
    def list_tool(self) -> str:
        """The name of the tool that lists the calls."""
        return f"{self._prefix}task_list"

    def has(self, tool: str) -> bool:
        """True if the tool is one of these."""
        return tool.startswith(self._prefix) and tool.removeprefix(self._prefix) in _NAMES

    def listed(self) -> list[dict[str, Any]]:
        """The descriptions, for a list of tools."""
        wait_s = {"type": "number", "description": "Seconds to wait, if it still runs.", "minimum": 0}
        return [
            _describe(
                f"{self._prefix}task_result",
                "Wait for the result of a call that was answered with a reference, and return the result.",
                {"reference": _REFERENCE, "wait_s": wait_s},
                read_only=True,
            ),
            _describe(
                f"{self._prefix}task_list",
                "List the calls that still run, and those whose result is waiting.",
                {},
                read_only=True,
            ),
            _describe(
                f"{self._prefix}task_cancel",
                "Ask the server to cancel a call. The server may finish it all the same.",
                {"reference": _REFERENCE},
                read_only=False,
            ),
        ]

    async def call(
        self, tool: str, arguments: Mapping[str, Any], request: HostRequest, serving: Serving
    ) -> dict[str, Any]:
        """Call one of the tools.

        Raises:
            TasksClientError: The journal could not be read, or the server could not be told.
            MCPError: The call that is asked for has ended in an error.
        """
        name = tool.removeprefix(self._prefix)
        if name == "task_list":
            return text_result(words.listed(await self._list(serving.line_for)))
        reference, wait_s = arguments.get("reference"), arguments.get("wait_s")
        call = await self._calls.by_reference(reference) if isinstance(reference, str) else None
        if call is None:
            text = words.no_such_call(str(reference), self.list_tool)
            return text_result(text, is_error=True)
        if name == "task_result":
            within_s = (
                float(min(wait_s, _LONGEST_WAIT_S))
                if isinstance(wait_s, int | float) and wait_s >= 0
                else None
            )
            return await serving.wait(call, request, within_s=within_s)
        await self._calls.cancel(call)
        if call.handle is None and call.end is not None:
            return text_result("There is nothing to cancel: the call has ended.")
        return text_result("The server was asked to cancel the call. It may finish it all the same.")

    async def _list(self, line_for: Callable[[str], str]) -> list[tuple[tasks.TaskRecord, list[str]]]:
        records = await self._calls.records(_MOST_LISTED)
        questions = await self._inbox.questions()
        return [
            (record, [line_for(one.question_id) for one in questions if one.record_id == record.record_id])
            for record in records
        ]


def _describe(name: str, text: str, properties: dict[str, Any], *, read_only: bool) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if "reference" in properties:
        schema["required"] = ["reference"]
    annotations = {"readOnlyHint": read_only, "destructiveHint": not read_only, "openWorldHint": False}
    return {"name": name, "description": text, "inputSchema": schema, "annotations": annotations}
