# /// script
# requires-python = ">=3.11"
# dependencies = ["dbos==3.4.0", "mcp==2.3.0"]
#
# [tool.recipe]
# longer-than-s = 6
# line = 'with idempotency_key(f"{DBOS.workflow_id}/{DBOS.step_id}"):'
# setting = "none"
# ///
"""DBOS: a tool of an MCP server, called in a step; a workflow that recovers joins the task by its key."""

import asyncio
import json
import sys

import mcp
import platformdirs
from dbos import DBOS, SetWorkflowID
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

from mcp_tasks_client import idempotency_key, tasks_http_client


async def answer(context, params):
    print(params.message, file=sys.stderr)
    return ElicitResult(action="accept", content={"version": "1.2"})


# [recipe]
@DBOS.step()
async def call(url: str, tool: str, arguments: dict) -> str:
    transport = streamable_http_client(url, http_client=tasks_http_client(journal="agent.sqlite3"))
    async with mcp.Client(transport, elicitation_callback=answer) as client:
        with idempotency_key(f"{DBOS.workflow_id}/{DBOS.step_id}"):
            result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content[0].text
    return result.content[0].text


@DBOS.workflow()
async def work(url: str, tool: str, arguments: dict) -> str:
    return await call(url, tool, arguments)


# [/recipe]


async def main(url: str, tool: str, arguments: dict) -> None:
    with SetWorkflowID(f"{url} {tool} {arguments}"):  # yours is the ID of the order, the request, the job
        handle = await DBOS.start_workflow_async(work, url, tool, arguments)
    print(await handle.get_result())


if __name__ == "__main__":
    folder = platformdirs.user_state_path("dbos-tools", ensure_exists=True)
    DBOS(config={"name": "tools", "system_database_url": f"sqlite:///{folder}/dbos.sqlite"})
    DBOS.launch()
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
    DBOS.destroy()
