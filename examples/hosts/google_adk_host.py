# /// script
# requires-python = ">=3.11"
# dependencies = ["google-adk[mcp]==2.13.0"]
#
# [tool.recipe]
# longer-than-s = 6
# line = "StreamableHTTPConnectionParams(url=url, httpx_client_factory=tasks_http_client_factory())"
# setting = "sse_read_timeout="
# ///
"""Google ADK: a tool of an MCP server, called as agents call it, with durable tasks beneath."""

import asyncio
import json
import sys

from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.sessions import InMemorySessionService
from google.adk.tools import ToolContext
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from mcp.types import ElicitResult

from mcp_tasks_client import tasks_http_client_factory


async def answer(context, params):
    print(params.message, file=sys.stderr)
    return ElicitResult(action="accept", content={"version": "1.2"})


async def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    connection = StreamableHTTPConnectionParams(
        url=url,
        httpx_client_factory=tasks_http_client_factory(journal="agent.sqlite3"),
        sse_read_timeout=24 * 3600,
    )
    toolset = McpToolset(connection_params=connection, elicitation_callback=answer)
    agent = LlmAgent(name="agent", tools=[toolset])
    # [/recipe]
    # A runner does this itself: Runner(agent=agent, ...).
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="app", user_id="user")
    run = InvocationContext(session_service=sessions, invocation_id="1", agent=agent, session=session)
    tools = {one.name: one for one in await toolset.get_tools()}
    result = await tools[tool].run_async(args=arguments, tool_context=ToolContext(run))
    await toolset.close()
    if "error" in result or result.get("isError") or result.get("is_error"):
        sys.exit(str(result))
    print(result["content"][0]["text"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
