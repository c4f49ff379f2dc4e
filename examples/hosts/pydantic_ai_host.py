# /// script
# requires-python = ">=3.11"
# dependencies = ["pydantic-ai-slim[mcp]==2.68.0", "fastmcp-slim[client]==4.2.3"]
#
# [tool.recipe]
# longer-than-s = 6
# line = "MCPToolset(url, http_client=tasks_http_client())"
# setting = "read_timeout="
# ///
"""Pydantic AI: a tool of an MCP server, called as agents call it, with durable tasks beneath."""

import asyncio
import json
import sys

from pydantic_ai.mcp import MCPToolset

from mcp_tasks_client import tasks_http_client


async def answer(message, response_type, params, context):
    print(message, file=sys.stderr)
    return {"version": "1.2"}


async def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    async with tasks_http_client(journal="agent.sqlite3") as http_client:
        toolset = MCPToolset(
            url,
            http_client=http_client,
            elicitation_handler=answer,
            read_timeout=24 * 3600,
        )
        async with toolset:
            # An agent does this itself: Agent(..., toolsets=[toolset]).
            result = await toolset.direct_call_tool(tool, arguments)
    # [/recipe]
    print(result)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
