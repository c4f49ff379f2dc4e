# /// script
# requires-python = ">=3.11"
# dependencies = ["agno==3.1.10", "fastmcp==4.2.3", "mcp==2.3.0"]
#
# [tool.recipe]
# longer-than-s = 12
# line = "fastmcp.Client(StreamableHttpTransport(url, httpx_client_factory=tasks_http_client_factory()))"
# setting = "none"
# ///
"""Agno: a tool of an MCP server, called as agents call it, with durable tasks beneath."""

import asyncio
import json
import sys

import fastmcp
from agno.tools.function import FunctionCall
from agno.tools.mcp import MCPTools
from fastmcp.client.transports import StreamableHttpTransport

from mcp_tasks_client import tasks_http_client_factory


async def answer(message, response_type, params, context):
    print(message, file=sys.stderr)
    return {"version": "1.2"}


async def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    factory = tasks_http_client_factory(journal="agent.sqlite3")
    transport = StreamableHttpTransport(url, httpx_client_factory=factory)
    async with (
        fastmcp.Client(transport, elicitation_handler=answer) as client,
        MCPTools(session=client) as tools,
    ):
        # An agent does this itself: Agent(tools=[tools]).
        call = FunctionCall(function=tools.functions[tool], arguments=arguments)
        result = await call.aexecute()
    # [/recipe]
    said = result.result.content if result.status == "success" else result.error
    if said.startswith(("Error from MCP tool", "MCP tool")):  # how Agno tells a model of a failure
        sys.exit(said)
    print(said)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
