"""``langchain.mcp``: a question of a durable task becomes an interrupt of the agent's graph.

Called as ``langchain_mcp_host.py`` is, in the same environment. A stand-in for a model calls the tool once.
"""

import asyncio
import json
import sys

import fastmcp
from fastmcp.client.transports import StreamableHttpTransport
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_tool_call
from langchain.mcp import MCPAdapter
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from mcp_tasks_client import idempotency_key, tasks_http_client_factory


class StandIn(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self


async def main(url: str, tool: str, arguments: dict) -> None:
    wish = {"name": tool, "args": arguments, "id": "call-1"}
    model = StandIn(messages=iter([AIMessage("", tool_calls=[wish]), AIMessage("done")]))

    # [recipe]
    @wrap_tool_call
    async def keyed(request, handler):
        with idempotency_key(request.tool_call["id"]):
            return await handler(request)

    factory = tasks_http_client_factory(journal="agent.sqlite3")
    transport = StreamableHttpTransport(url, httpx_client_factory=factory)
    async with MCPAdapter(fastmcp.Client(transport)) as adapter:
        tools = await adapter.list_tools()
        agent = create_agent(model, tools, middleware=[keyed], checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}}
        said = await agent.ainvoke({"messages": [("user", "Greet me.")]}, thread)
        asked = said["__interrupt__"][0].value["requests"]
        answers = {one["key"]: {"action": "accept", "content": {"version": "1.2"}} for one in asked}
        said = await agent.ainvoke(Command(resume={"responses": answers}), thread)
    # [/recipe]
    message = said["messages"][-2]
    if message.status == "error":
        sys.exit(message.text)
    print(message.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
