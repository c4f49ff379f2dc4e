# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain-mcp-adapters==0.3.2"]
#
# [tool.recipe]
# longer-than-s = 6
# line = '{..., "httpx_client_factory": tasks_http_client_factory(library="httpx")}'
# setting = "none"
# ///
"""LangChain MCP adapters: a tool of an MCP server, called as agents call it, with durable tasks beneath."""

import asyncio
import json
import sys

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult

from mcp_tasks_client import tasks_http_client_factory


async def answer(mcp_context, params, context):
    print(params.message, file=sys.stderr)
    return ElicitResult(action="accept", content={"version": "1.2"})


async def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    server = {
        "transport": "streamable_http",
        "url": url,
        "httpx_client_factory": tasks_http_client_factory(library="httpx", journal="agent.sqlite3"),
    }
    client = MultiServerMCPClient({"server": server}, callbacks=Callbacks(on_elicitation=answer))
    tools = {one.name: one for one in await client.get_tools()}
    # An agent does this itself: create_agent(model, tools=list(tools.values())).
    call = {"type": "tool_call", "id": "1", "name": tool, "args": arguments}
    message = await tools[tool].ainvoke(call)
    # [/recipe]
    if message.status == "error":
        sys.exit(message.text)
    print(message.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
