"""A coffee machine as an MCP server: one slow tool, which asks a question half-way.

``quickstart.py`` starts it; ``python examples/demo_server.py 8000`` does so in a terminal. Without a port it
takes a free one. Prints its address once it listens, keeps its tasks in memory, and ends when its stdin does,
so that it never outlives the program that started it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from datetime import timedelta
from functools import partial

import anyio
from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

STEP_S = float(os.environ.get("DEMO_STEP_S", "1.5"))
"""Seconds of each step of the work."""

mcp = FastMCP("coffee machine")
mcp.add_extension(TasksExtension(url="memory://"))
orders: list[int] = []


@mcp.tool(task=TaskConfig(mode="required", poll_interval=timedelta(seconds=STEP_S / 4)))
async def brew(context: Context, cups: int = 1) -> str | InputRequiredResult:
    """Brew coffee. Takes its time, and wants to know which milk."""
    # A task asks by returning. Once it has the answer, it runs again from here.
    if context.input_responses is None:
        orders.append(cups)
        order = f"Order {len(orders)}"
        await work(context, "grinding the beans", "heating the water", "warming the cups")
        return ask("milk", "Which milk would you like?", state=order)
    milk = entered(context, "milk")
    await work(context, f"frothing {milk} milk", "pouring")
    return f"{context.request_state}: {cups} cups of coffee with {milk} milk"


async def work(context: Context, *steps: str) -> None:
    """Do one thing after the other, each for a while."""
    for number, step in enumerate(steps, start=1):
        await context.report_progress(number, len(steps), step)
        await anyio.sleep(STEP_S)


def ask(key: str, message: str, *, state: str) -> InputRequiredResult:
    """Ask the person at the other end for a text."""
    form = ElicitRequestFormParams(
        message=message,
        requested_schema={"type": "object", "properties": {key: {"type": "string"}}, "required": [key]},
    )
    return InputRequiredResult(input_requests={key: ElicitRequest(params=form)}, request_state=state)


def entered(context: Context, key: str) -> str:
    """What the person entered, or "no" if the question was turned down."""
    answer = (context.input_responses or {}).get(key)
    accepted = isinstance(answer, ElicitResult) and answer.action == "accept" and answer.content
    return str(accepted[key]) if accepted else "no"


def end_with_parent() -> None:
    """End this process at the end of its stdin."""
    while os.read(0, 4096):
        pass
    os._exit(0)  # an orderly exit would wait for running tasks


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    # It listens from here on: a client that connects before the server is up waits a moment.
    port = int(sys.argv[1]) if sys.argv[1:] else 0
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        sys.exit(f"port {port} cannot be used ({error.strerror}); give another one")
    host, port = listener.getsockname()
    print(f"http://{host}:{port}/mcp", flush=True)
    # FastMCP listens at the socket; it writes the host and the port into its log.
    anyio.run(partial(mcp.run_http_async, host=host, port=port, sockets=[listener], show_banner=False))
