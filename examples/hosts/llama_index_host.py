# /// script
# requires-python = ">=3.11"
# dependencies = ["llama-index-tools-mcp==0.6.0"]
#
# [tool.recipe]
# longer-than-s = 32
# line = "BasicMCPClient(url, http_client=tasks_http_client())"
# setting = "timeout="
# ///
"""LlamaIndex: a tool of an MCP server, called as agents call it, with durable tasks beneath."""

import asyncio
import json
import sys

from llama_index.tools.mcp import BasicMCPClient, McpToolSpec
from mcp_types import ElicitResult

from mcp_tasks_client import tasks_http_client


async def answer(context, params):
    print(params.message, file=sys.stderr)
    return ElicitResult(action="accept", content={"version": "1.2"})


async def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    async with tasks_http_client(journal="agent.sqlite3", elicitation=answer) as http_client:
        client = BasicMCPClient(url, http_client=http_client, timeout=24 * 3600)
        tools = await McpToolSpec(client, allowed_tools=[tool]).to_tool_list_async()
        # An agent does this itself: FunctionAgent(tools=tools, ...).
        output = await tools[0].acall(**arguments)
    # [/recipe]
    text = output.raw_output.content[0].text
    if output.raw_output.is_error:
        sys.exit(text)
    print(text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
