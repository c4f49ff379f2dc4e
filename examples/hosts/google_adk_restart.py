"""Google ADK: an agent that was killed in a tool call goes on with that call.

Called as ``google_adk_host.py`` is, in the same environment. A stand-in for a model repeats the result.
"""

import asyncio
import json
import sys

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.genai.types import Content, FunctionCall, Part

from mcp_tasks_client import idempotency_key, tasks_http_client_factory


class StandIn(BaseLlm):
    async def generate_content_async(self, request, stream=False):
        told = request.contents[-1].parts[-1].function_response
        yield LlmResponse(content=Content(role="model", parts=[Part(text=str(told.response))]))


async def main(url: str, tool: str, arguments: dict) -> None:
    # [restart]
    async def keyed(tool, args, tool_context):
        with idempotency_key(tool_context.function_call_id):
            return await tool.run_async(args=args, tool_context=tool_context)

    connection = StreamableHTTPConnectionParams(
        url=url,
        httpx_client_factory=tasks_http_client_factory(journal="agent.sqlite3"),
        sse_read_timeout=24 * 3600,
    )
    toolset = McpToolset(connection_params=connection)
    # [/restart]
    model = StandIn(model="stand-in")
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="app", user_id="user", session_id="1")
    # As a session service on a disk has it: the model's message, and no result of the tool yet.
    call = Part(function_call=FunctionCall(id="call-1", name=tool, args=arguments))
    asked = Content(role="user", parts=[Part(text="Rest.")])
    for author, content in (("user", asked), ("agent", Content(role="model", parts=[call]))):
        event = Event(invocation_id="run-1", author=author, content=content)
        await sessions.append_event(session, event)
    # [restart]
    agent = LlmAgent(name="agent", model=model, tools=[toolset], before_tool_callback=keyed)
    app = App(name="app", root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
    runner = Runner(app=app, session_service=sessions)
    run = runner.run_async(user_id="user", session_id="1", invocation_id="run-1")
    events = [event async for event in run]  # the first is the result of the call that had none
    # [/restart]
    await toolset.close()
    print(events[0].content.parts[0].function_response.response["content"][0]["text"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
