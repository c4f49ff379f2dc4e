"""``langchain.mcp``: an agent that was killed in a tool call goes on with that call.

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

from mcp_tasks_client import idempotency_key, tasks_http_client_factory


class StandIn(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self


async def main(url: str, tool: str, arguments: dict) -> None:
    wish = AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": "call-1"}])
    model = StandIn(messages=iter([AIMessage("done")]))
    checkpointer, thread = InMemorySaver(), {"configurable": {"thread_id": "1"}}

    # [restart]
    @wrap_tool_call
    async def keyed(request, handler):
        with idempotency_key(request.tool_call["id"]):
            return await handler(request)

    factory = tasks_http_client_factory(journal="agent.sqlite3")
    transport = StreamableHttpTransport(url, httpx_client_factory=factory)
    async with MCPAdapter(fastmcp.Client(transport)) as adapter:
        tools = await adapter.list_tools()
        agent = create_agent(model, tools, middleware=[keyed], checkpointer=checkpointer)
        # [/restart]
        # As a checkpointer on a disk has it: the model's message, and no result of the tool yet.
        messages = {"messages": [("user", "Rest."), wish]}
        await agent.aupdate_state(thread, messages, as_node="model")
        # [restart]
        said = await agent.ainvoke(None, thread)  # goes on with the call that has no result
    # [/restart]
    print(said["messages"][-2].text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
