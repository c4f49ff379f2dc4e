"""Microsoft Agent Framework: a run that was killed in a tool call goes on with that call.

Called as ``agent_framework_host.py`` is, in the same environment. A stand-in for a model calls the tool once.
"""

import asyncio
import json
import sys
from pathlib import Path

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    MCPStreamableHTTPTool,
    Message,
    function_middleware,
)

from mcp_tasks_client import idempotency_key, tasks_http_client

FILE = Path("run.json")  # your database


class StandIn(FunctionInvocationLayer, BaseChatClient):
    wish: Content

    async def _inner_get_response(self, *, messages, stream, options, **kwargs):
        parts = [part for message in messages for part in message.contents]
        told = [part.result for part in parts if part.type == "function_result"]
        return ChatResponse(messages=[Message("assistant", told or [self.wish])])


def load() -> str | None:
    return FILE.read_text() if FILE.exists() else None


def store(state: str) -> None:
    FILE.write_text(state)


async def main(url: str, tool: str, arguments: dict) -> None:
    model = StandIn()
    model.wish = Content.from_function_call("call-1", tool, arguments=arguments)

    # [restart]
    @function_middleware
    async def keyed(context, call_next):
        with idempotency_key(context.metadata["call_id"]):
            await call_next()

    async with (
        tasks_http_client(journal="agent.sqlite3") as http_client,
        MCPStreamableHTTPTool(
            "tools",
            url,
            http_client=http_client,
            load_prompts=False,
            approval_mode="always_require",
            tool_result_content="content_only",
        ) as tools,
    ):
        agent = Agent(client=model, tools=tools, middleware=[keyed])
        if load() is None:  # else an earlier process was killed
            session = agent.create_session()
            run = await agent.run("Rest.", session=session)
            asked = [one.to_dict() for one in run.user_input_requests]
            store(json.dumps({"session": session.to_dict(), "asked": asked}))
        state = json.loads(load())
        session = AgentSession.from_dict(state["session"])
        calls = [Content.from_dict(one) for one in state["asked"]]
        answers = [call.to_function_approval_response(approved=True) for call in calls]
        run = await agent.run(Message("user", answers), session=session)  # makes the call, each time
    # [/restart]
    print(run.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
