# /// script
# requires-python = ">=3.11"
# dependencies = ["crewai==1.15.30", "mcpadapt[crewai]==0.1.19"]
#
# [tool.recipe]
# longer-than-s = 6
# line = '"httpx_client_factory": tasks_http_client_factory(library="httpx", elicitation=answer)'
# setting = "none"
# ///
"""CrewAI: a tool of an MCP server, called as agents call it, with durable tasks beneath."""

import json
import sys

from mcp_types import ElicitResult
from mcpadapt.core import MCPAdapt
from mcpadapt.crewai_adapter import CrewAIAdapter

from mcp_tasks_client import tasks_http_client_factory


async def answer(context, params):
    print(context.tool, "asks:", params.message, file=sys.stderr)
    return ElicitResult(action="accept", content={"version": "1.2"})


def main(url: str, tool: str, arguments: dict) -> None:
    # [recipe]
    server = {
        "url": url,
        "transport": "streamable-http",
        "httpx_client_factory": tasks_http_client_factory(
            library="httpx", journal="agent.sqlite3", elicitation=answer
        ),
    }
    with MCPAdapt(server, CrewAIAdapter()) as tools:
        # An agent does this itself: Agent(tools=tools, ...).
        result = next(one for one in tools if one.name == tool).run(**arguments)
    # [/recipe]
    print(result)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
