# /// script
# requires-python = ">=3.11"
# dependencies = ["openai-agents==0.24.0"]
#
# [tool.recipe]
# longer-than-s = 7
# line = 'params={..., "httpx_client_factory": tasks_http_client_factory()}'
# setting = "client_session_timeout_seconds="
# ///
"""OpenAI Agents SDK: a tool of an MCP server, called as agents call it, with durable tasks beneath."""

import asyncio
import json
import sys

from agents import Agent, RunContextWrapper
from agents.mcp import MCPServerStreamableHttp
from agents.tool_context import ToolContext
from mcp_types import ElicitResult

from mcp_tasks_client import tasks_http_client_factory


async def answer(context, params):
    print(params.message, file=sys.stderr)
    return ElicitResult(action="accept", content={"version": "1.2"})


async def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    factory = tasks_http_client_factory(journal="agent.sqlite3", elicitation=answer)
    async with MCPServerStreamableHttp(
        params={"url": url, "httpx_client_factory": factory},
        client_session_timeout_seconds=None,
    ) as server:
        agent = Agent(name="agent", mcp_servers=[server])
        # A run does this itself: Runner.run(agent, ...).
        tools = {one.name: one for one in await agent.get_mcp_tools(RunContextWrapper(None))}
        given = json.dumps(arguments)
        call = ToolContext(None, tool_name=tool, tool_call_id="1", tool_arguments=given)
        result = await tools[tool].on_invoke_tool(call, given)
    # [/recipe]
    if isinstance(result, str):  # what the SDK tells a model of a failure
        sys.exit(result)
    print(result["text"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
