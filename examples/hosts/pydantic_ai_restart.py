"""Pydantic AI: an agent that was killed in a tool call goes on with that call.

Called as ``pydantic_ai_host.py`` is, in the same environment. A stand-in for a model repeats the result.
"""

import asyncio
import json
import sys

from pydantic_ai import Agent, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.function import FunctionModel

from mcp_tasks_client import idempotency_key, tasks_http_client


def stand_in(messages, info):
    return ModelResponse([TextPart(messages[-1].parts[-1].model_response_str())])


async def main(url: str, tool: str, arguments: dict) -> None:
    # As your database has it: the model's message, and no result of the tool yet.
    asked = ModelRequest.user_text_prompt("Rest.")
    history = [asked, ModelResponse([ToolCallPart(tool, arguments, tool_call_id="call-1")])]
    model = FunctionModel(stand_in)

    # [restart]
    async def keyed(context, call_tool, name, arguments):
        with idempotency_key(context.tool_call_id):
            return await call_tool(name, arguments)

    async with tasks_http_client(journal="agent.sqlite3") as http_client:
        toolset = MCPToolset(url, http_client=http_client, read_timeout=24 * 3600, process_tool_call=keyed)
        result = await Agent(model, toolsets=[toolset]).run(message_history=history)
    # [/restart]
    print(result.output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
