"""A host that keeps its HTTP client when its event loop is closed under a call.

See ``test_cancelled_requests.py``. The argument is the path of the journal. The host calls again under the
key in a new loop, and prints the text of the result, and how often the tool was called. It is a process of
its own, since a loop that is closed leaves its tasks behind.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import anyio
import httpx

from mcp_tasks_client import TasksHttpTransport
from tests.kit.current_server import DONE, LIMIT_S, QUICK, WORKING, CurrentServer
from tests.kit.json_rpc_host import JsonRpcHost

KEY = {"mcp-tasks-client/idempotency-key": "key"}
LEFT = list[Any]()


def main(path: str) -> None:
    server = CurrentServer(gets=[WORKING])

    async def reply(request: httpx.Request) -> httpx.Response:
        message = json.loads(request.content)
        result = await server(message["method"], message["params"])
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": message["id"], "result": result})

    transport = TasksHttpTransport(httpx.MockTransport(reply), journal=path, poll=QUICK)
    host = JsonRpcHost(httpx.AsyncClient(transport=transport))

    async def call_and_leave() -> None:
        LEFT.append(asyncio.ensure_future(host.call("tool", meta=KEY)))
        await server.wait_for("tasks/get", 3)

    async def call_again() -> str:
        with anyio.fail_after(LIMIT_S):
            return await host.text("tool", meta=KEY)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(call_and_leave())
    loop.close()
    server.replies["tasks/get"] = {**DONE, "resultType": "complete"}
    print(asyncio.run(call_again()), server.counts["tools/call"])


if __name__ == "__main__":
    main(sys.argv[1])
