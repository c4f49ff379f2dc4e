"""A scripted server over HTTP, in a process of its own: ``ask`` asks a name, and ``rest`` takes two seconds.

Prints ``{"url": ...}`` once it listens, and ends when its standard input does.
"""

from __future__ import annotations

import threading
from typing import Any

import uvicorn

from mcp_tasks_client.testing import ScriptedServer, ask, complete, form, text_result, work
from tests.servers.announced import AnnouncedServer, die_with_parent


def hello(answers: Any) -> dict[str, Any]:
    return text_result(f"Hello, {answers['name']['content']['name']}")


def main() -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    server = ScriptedServer()
    question = ask("name", form("Who?", name="string"))
    server.tool("ask", [work(0.1), question, complete(hello)], poll_interval_ms=50)
    server.tool("rest", [work(2.0), complete(text_result("rested"))], poll_interval_ms=50)
    config = uvicorn.Config(server.app, host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    AnnouncedServer(config).run()


if __name__ == "__main__":
    main()
