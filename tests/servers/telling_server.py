"""A real server with resources and prompts, and with tools that tell: MCP at 2026-07-28 and at 2025-11-25.

``--kind sdk`` is the official SDK's server, which offers ``subscriptions/listen``; ``--kind fastmcp`` is
FastMCP, which does not. Run as a script, it prints where it listens, as ``fastmcp_server.py`` does, or
speaks over its standard streams (``--stdio``).
"""

from __future__ import annotations

import argparse
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import anyio
import fastmcp
import mcp.server.mcpserver as sdk
import uvicorn
from mcp import MCPError

if not __package__:  # run as a script: Python has put this folder on its path, and not the repository
    sys.path[0] = str(Path(__file__).parents[2])

from tests.servers.announced import AnnouncedServer, die_with_parent

README = "file:///readme.txt"


def add_what_can_be_read(server: Any) -> None:
    @server.resource(README)  # type: ignore[untyped-decorator]
    def readme() -> str:
        return "Read me"

    @server.resource("file:///slow.txt")  # type: ignore[untyped-decorator]
    async def slow() -> str:
        await anyio.sleep(2)
        return "at last"

    @server.resource("file:///broken.txt")  # type: ignore[untyped-decorator]
    def broken() -> str:
        raise MCPError(code=-32050, message="quota exceeded", data={"retryAfter": 7})

    @server.prompt()  # type: ignore[untyped-decorator]
    def greet(name: str) -> str:
        return f"Say hello to {name}"


def build_sdk() -> Any:
    server = sdk.MCPServer("telling")
    add_what_can_be_read(server)

    @server.tool()
    async def tell(context: sdk.Context[Any, Any], count: int = 3) -> str:
        for number in range(1, count + 1):
            await context.report_progress(number, count, f"step {number}")
            await context.session.send_log_message(
                "info", f"line {number}", related_request_id=context.request_context.request_id
            )
        return "told"

    @server.prompt()
    async def tell_first(context: sdk.Context[Any, Any]) -> str:
        await context.report_progress(1, 1, "asked")
        return "Say hello"

    @server.tool()
    async def change(context: sdk.Context[Any, Any]) -> str:
        await context.notify_tools_changed()
        await context.notify_resource_updated(README)
        await context.session.send_tool_list_changed()
        return "changed"

    return server


def build_fastmcp() -> Any:
    server = fastmcp.FastMCP("telling")
    add_what_can_be_read(server)

    @server.tool
    async def tell(context: fastmcp.Context, count: int = 3) -> str:
        for number in range(1, count + 1):
            await context.report_progress(number, count, f"step {number}")
            await context.info(f"line {number}")
        return "told"

    @server.prompt
    async def tell_first(context: fastmcp.Context) -> str:
        await context.report_progress(1, 1, "asked")
        return "Say hello"

    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=["sdk", "fastmcp"], required=True)
    parser.add_argument("--stdio", action="store_true", help="speak over stdin and stdout")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # logging is deprecated, and there all the same
    server = build_sdk() if given.kind == "sdk" else build_fastmcp()
    if given.stdio:
        server.run("stdio")
        return
    threading.Thread(target=die_with_parent, daemon=True).start()
    app = server.streamable_http_app() if given.kind == "sdk" else server.http_app()
    AnnouncedServer(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on")).run()


if __name__ == "__main__":
    main()
