# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain[mcp]==1.5.2", "fastmcp==4.2.3"]
#
# [tool.recipe]
# longer-than-s = 6
# line = "fastmcp.Client(StreamableHttpTransport(url, httpx_client_factory=tasks_http_client_factory()))"
# setting = "none"
# ///
"""``langchain.mcp``: a tool of an MCP server, called as agents call it, with durable tasks beneath."""

import asyncio
import json
import sys

import fastmcp
from fastmcp.client.transports import StreamableHttpTransport
from langchain.mcp import MCPAdapter

from mcp_tasks_client import tasks_http_client_factory


async def answer(message, response_type, params, context):
    print(message, file=sys.stderr)
    return {"version": "1.2"}


async def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    factory = tasks_http_client_factory(journal="agent.sqlite3")
    transport = StreamableHttpTransport(url, httpx_client_factory=factory)
    client = fastmcp.Client(transport, elicitation_handler=answer)
    async with MCPAdapter(client) as adapter:
        tools = {one.name: one for one in await adapter.list_tools()}
        # An agent does this itself: create_agent(model, tools=list(tools.values())).
        call = {"type": "tool_call", "id": "1", "name": tool, "args": arguments}
        message = await tools[tool].ainvoke(call)
    # [/recipe]
    if message.status == "error":
        sys.exit(message.text)
    print(message.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
