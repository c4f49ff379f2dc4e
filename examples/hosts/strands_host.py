# /// script
# requires-python = ">=3.11"
# dependencies = ["strands-agents==1.62.0", "mcp==2.1.1"]
#
# [tool.recipe]
# longer-than-s = 6
# line = "MCPClient(lambda: streamable_http_client(url, http_client=tasks_http_client()))"
# setting = "none"
# ///
"""Strands Agents: a tool of an MCP server, called through an agent, with durable tasks beneath."""

import json
import sys

from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult
from strands import Agent
from strands.tools.mcp import MCPClient

from mcp_tasks_client import tasks_http_client


async def answer(context, params):
    print(params.message, file=sys.stderr)
    return ElicitResult(action="accept", content={"version": "1.2"})


def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    tools = MCPClient(
        lambda: streamable_http_client(url, http_client=tasks_http_client(journal="agent.sqlite3")),
        elicitation_callback=answer,
    )
    agent = Agent(tools=[tools])
    result = getattr(agent.tool, tool)(**arguments)
    # [/recipe]
    text = result["content"][0]["text"]
    if result["status"] == "error":
        sys.exit(text)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
