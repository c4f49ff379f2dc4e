# /// script
# requires-python = ">=3.11"
# dependencies = ["agent-framework-core==1.23.0", "mcp==2.3.0"]
#
# [tool.recipe]
# longer-than-s = 6
# line = "http_client=tasks_http_client(elicitation=answer)"
# setting = "none"
# ///
"""Microsoft Agent Framework: a tool of an MCP server, called as agents do, with durable tasks beneath."""

import asyncio
import json
import sys

from agent_framework import MCPStreamableHTTPTool
from mcp_types import ElicitResult

from mcp_tasks_client import tasks_http_client


async def answer(context, params):
    print(context.tool, "asks:", params.message, file=sys.stderr)
    return ElicitResult(action="accept", content={"name": "Ada"})


async def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    async with (
        tasks_http_client(elicitation=answer) as http_client,
        MCPStreamableHTTPTool(
            "tools",
            url,
            http_client=http_client,
            load_prompts=False,
            tool_result_content="content_only",
            additional_tool_argument_names=[*arguments],
        ) as tools,
    ):
        functions = {function.name: function for function in tools.functions}
        if tool in functions:  # which is what an agent calls
            result = await functions[tool].invoke(arguments=arguments)
        else:  # hidden from agents, since it makes tasks of 2025-11-25
            result = await tools.call_tool(tool, **arguments)
    # [/recipe]
    print(result[0].text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
