# /// script
# requires-python = ">=3.11"
# dependencies = ["agent-framework-core==1.23.0", "mcp==2.3.0"]
#
# [tool.recipe]
# longer-than-s = 6
# line = "mcp_client=client, over a TasksTransport over tasks_http_client()"
# setting = "none"
# ///
"""Microsoft Agent Framework: a tool of an MCP server, called as agents do, with durable tasks beneath."""

import asyncio
import json
import sys

import mcp
from agent_framework import MCPStreamableHTTPTool
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from mcp_tasks_client import TasksTransport, tasks_http_client


async def answer(context, params):
    print(params.message, file=sys.stderr)
    return ElicitResult(action="accept", content={"version": "1.2"})


async def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    async with tasks_http_client(journal="agent.sqlite3") as http_client:  # sees the tasks through
        inner = streamable_http_client(url, http_client=http_client)
        # Agent Framework skips tools whose task support it sees.
        shown = TasksTransport(
            inner, endpoint=url, journal="agent.sqlite3", task_preference="never", hide_task_support=True
        )
        async with (
            mcp.Client(shown, elicitation_callback=answer) as client,
            MCPStreamableHTTPTool(
                "tools", mcp_client=client, load_prompts=False, tool_result_content="content_only"
            ) as tools,
        ):
            functions = {function.name: function for function in tools.functions}
            result = await functions[tool].invoke(arguments=arguments)
    # [/recipe]
    print(result[0].text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
