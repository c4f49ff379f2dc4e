"""Strands Agents: an agent that was killed in a tool call goes on with that call.

Called as ``strands_host.py`` is, in the same environment. A stand-in for a model says that it is done.
"""

import json
import sys

from mcp.client.streamable_http import streamable_http_client
from strands import Agent
from strands.models import Model
from strands.tools.mcp import MCPClient

from mcp_tasks_client import idempotency_key, tasks_http_client


class StandIn(Model):
    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    async def structured_output(self, *args, **options):
        yield {}

    async def stream(self, messages, *args, **options):
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": ""}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


# [restart]
class KeyedClient(MCPClient):
    async def call_tool_async(self, tool_use_id, *args, **options):
        with idempotency_key(tool_use_id):
            return await super().call_tool_async(tool_use_id, *args, **options)


# [/restart]


def main(url: str, tool: str, arguments: dict) -> None:
    model = StandIn()
    # As your session has it: the model's message, and no result of the tool yet.
    call = {"toolUse": {"toolUseId": "call-1", "name": tool, "input": arguments}}
    messages = [
        {"role": "user", "content": [{"text": "Rest."}]},
        {"role": "assistant", "content": [call]},
    ]
    # [restart]
    http_client = tasks_http_client(journal="agent.sqlite3")
    tools = KeyedClient(lambda: streamable_http_client(url, http_client=http_client))
    agent = Agent(model=model, tools=[tools], messages=messages)
    agent()  # goes on with the call that has no result
    # [/restart]
    print(agent.messages[-2]["content"][0]["toolResult"]["content"][0]["text"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
