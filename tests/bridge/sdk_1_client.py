"""A host on ``mcp`` 1.x, in an environment of its own, which plays turns.

``sdk_1_client.py OPTIONS`` takes one JSON object, and prints lines of JSON, as ``ts_client.mjs`` does.
It needs nothing of this repository.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import timedelta
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import McpError


def say(**seen: Any) -> None:
    print(json.dumps(seen), flush=True)


async def main(options: dict[str, Any]) -> None:
    reference: str | None = None
    progressed = 0

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        say(asked=params.message)
        return types.ElicitResult(action="accept", content=options["answers"])

    async def count(progress: float, total: float | None, message: str | None) -> None:
        nonlocal progressed
        progressed += 1

    async def play(session: ClientSession, turn: dict[str, Any]) -> str:
        """Call a tool once. Returns the text that came back."""
        nonlocal reference
        filled = {
            name: reference if value == "$reference" else value for name, value in turn["arguments"].items()
        }
        try:
            result = await session.call_tool(
                turn["tool"],
                filled,
                read_timeout_seconds=limit,
                progress_callback=count if options["patient"] else None,
            )
        except McpError as error:
            say(failed=error.error.message, code=error.error.code)
            return error.error.message
        shown = "\n".join(part.text for part in result.content if isinstance(part, types.TextContent))
        found = re.findall(r"\b[0-9a-f]{32}\b", shown)
        reference = [reference, *found][-1]
        say(shown=shown, is_error=result.isError)
        return shown

    command, *arguments = options["bridge"]
    limit = timedelta(milliseconds=options["limit_ms"]) if options["limit_ms"] else None
    asked = answer if options["answers"] is not None else None
    async with (
        stdio_client(StdioServerParameters(command=command, args=arguments)) as (reading, writing),
        ClientSession(reading, writing, elicitation_callback=asked) as session,
    ):
        await session.initialize()
        say(listed=[tool.name for tool in (await session.list_tools()).tools])
        for turn in options["turns"]:
            for _ in range(turn["most"]):
                if turn["until"] in await play(session, turn):
                    break
        say(progressed=progressed)


anyio.run(main, json.loads(sys.argv[1]))
