"""OpenAI Agents SDK: a run that was killed in a tool call goes on with that call.

Called as ``openai_agents_host.py`` is, in the same environment. A stand-in for a model calls the tool once.
"""

import asyncio
import sys
from pathlib import Path

from agents import Agent, Model, ModelResponse, Runner, RunState, Usage, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from mcp_tasks_client import tasks_http_client_factory

FILE = Path("run.json")  # your database


class StandIn(Model):
    def __init__(self, tool: str, arguments: str) -> None:
        self.call = ResponseFunctionToolCall(
            type="function_call", call_id="call-1", name=tool, arguments=arguments
        )

    async def get_response(self, system_instructions, input, *args, **options):
        told = [one["output"] for one in input if isinstance(one, dict) and "output" in one]
        text = told[0][0]["text"] if told else ""
        part = ResponseOutputText(type="output_text", text=text, annotations=[])
        said = ResponseOutputMessage(
            id="1", type="message", role="assistant", status="completed", content=[part]
        )
        return ModelResponse([said if told else self.call], Usage(), None)

    def stream_response(self, *args, **options):
        raise NotImplementedError


def load() -> str | None:
    return FILE.read_text() if FILE.exists() else None


def store(state: str) -> None:
    FILE.write_text(state)


async def main(url: str, tool: str, arguments: str) -> None:
    set_tracing_disabled(True)
    model = StandIn(tool, arguments)

    # [restart]
    def keyed(context):
        return {"mcp-tasks-client/idempotency-key": context.run_context.tool_call_id}

    async with MCPServerStreamableHttp(
        params={"url": url, "httpx_client_factory": tasks_http_client_factory(journal="agent.sqlite3")},
        client_session_timeout_seconds=None,
        require_approval="always",
        tool_meta_resolver=keyed,
    ) as server:
        agent = Agent(name="agent", model=model, mcp_servers=[server])
        if load() is None:  # else an earlier process was killed
            run = await Runner.run(agent, "Rest.")
            store(run.to_state().to_string())
        state = await RunState.from_string(agent, load())
        for asked in state.get_interruptions():
            state.approve(asked)
        run = await Runner.run(agent, state)  # makes the call, the second time as well
    # [/restart]
    print(run.final_output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3]))
