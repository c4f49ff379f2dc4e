"""The client under test: what a host would write, once for each scenario of the conformance harness.

The harness starts it with the server's URL as the last argument and the scenario's name in
``MCP_CONFORMANCE_SCENARIO``; some scenarios say in ``MCP_CONFORMANCE_CONTEXT`` what to call.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import anyio
from mcp_types import ElicitResult, ErrorData, TextContent

from mcp_tasks_client import MemoryJournal, SessionError, TaskFailedError, TasksClient
from mcp_tasks_client.sessions.http.http_session import HttpSession

LIMIT_S: Final = 20.0
"""Less than the harness gives, so that a client that hangs says where."""

METHOD_NOT_FOUND: Final = -32601

INVALID_TOOLS: Final = (
    "invalid_empty_header",
    "invalid_object_header",
    "invalid_array_header",
    "invalid_null_header",
    "invalid_number_header",
    "invalid_duplicate_same_case",
    "invalid_duplicate_diff_case",
    "invalid_space_in_name",
    "invalid_colon_in_name",
    "invalid_non_ascii_name",
    "invalid_control_char_name",
)


async def tools_call(client: TasksClient, url: str) -> None:
    result = await client.call_tool("add_numbers", {"a": 5, "b": 3})
    assert result.content == [TextContent(type="text", text="The sum of 5 and 3 is 8")], result


async def request_metadata(client: TasksClient, url: str) -> None:
    await client.call_tool("any")


async def request_state(client: TasksClient, url: str) -> None:
    for tool in ("test_mrtr_echo_state", "test_mrtr_no_state", "test_mrtr_no_result_type"):
        await client.call_tool(tool)


async def standard_headers(client: TasksClient, url: str) -> None:
    for tool in ("test_headers", "my-hyphenated-tool"):
        await client.call_tool(tool)


async def custom_headers(client: TasksClient, url: str) -> None:
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await client.call_tool(call["name"], call["arguments"])


async def invalid_tool_headers(client: TasksClient, url: str) -> None:
    for tool in INVALID_TOOLS:
        try:
            await client.call_tool(tool)
        except SessionError as error:
            print(f"refused: {error}")
    await client.call_tool("valid_tool", {"region": "us-west1"})


async def reference_not_followed(client: TasksClient, url: str) -> None:
    try:
        await client.call_tool("lookup_user", {"id": "ada"})
    except TaskFailedError as error:
        # This server lists a tool, and has no tools/call.
        if error.code != METHOD_NOT_FOUND:
            raise


async def schema_preserved(client: TasksClient, url: str) -> None:
    async with aclosing(HttpSession(url)) as session:
        tool = await session.tool("json_schema_2020_12_tool")
    assert tool is not None
    await client.call_tool("json_schema_echo", {"schema": tool.input_schema})


SCENARIOS: Final[dict[str, Callable[[TasksClient, str], Awaitable[None]]]] = {
    "tools_call": tools_call,
    "request-metadata": request_metadata,
    "sep-2322-client-request-state": request_state,
    "http-standard-headers": standard_headers,
    "http-custom-headers": custom_headers,
    "http-invalid-tool-headers": invalid_tool_headers,
    "json-schema-ref-no-deref": reference_not_followed,
    "json-schema-2020-12-preservation": schema_preserved,
}
"""The harness's client scenarios for 2026-07-28, without those on OAuth: that is the host's ``auth``."""


def declared_only(*_: Any) -> ErrorData:
    """A callback that no scenario asks for; that it is there declares the capability."""
    return ErrorData(code=-1, message="nobody is here to answer")


async def main(scenario: str, url: str) -> None:
    async def confirm(context: Any, params: Any) -> ElicitResult:
        if context.tool == "test_mrtr_echo_state":
            # Another call while this one waits for its answer: nothing of the one may be in the other.
            await client.call_tool("test_mrtr_unrelated")
        return ElicitResult(action="accept", content={"confirmed": True})

    client = TasksClient(
        url, journal=MemoryJournal(), elicitation=confirm, sampling=declared_only, roots=declared_only
    )
    with anyio.fail_after(LIMIT_S):
        async with client:
            await SCENARIOS[scenario](client, url)


if __name__ == "__main__":
    anyio.run(main, os.environ["MCP_CONFORMANCE_SCENARIO"], sys.argv[-1])
