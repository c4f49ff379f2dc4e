"""A web service whose users' tool calls survive its restart, watched in a browser.

::

    pip install -e ".[examples]"
    python examples/web_service.py

Open the address that it prints, order coffee, and press "Kill the service". The process is killed with
SIGKILL and started again, and the same order goes on. The service keeps no state of its own: what the page
shows comes from the journal. The ID that the browser makes for each order is the key of its call.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from mcp_types import ElicitResult
from shared import python, running_server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from mcp_tasks_client import InputContext, TaskRecord, TasksClient


class CoffeeService:
    """Orders of a coffee machine, by their IDs."""

    def __init__(self, url: str, journal: str) -> None:
        self.client = TasksClient(url, journal=journal, elicitation=self.ask)
        self.answers: dict[str | None, asyncio.Future[str]] = {}

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Take up what the killed process left, for as long as the service runs."""
        async with self.client:
            await self.client.resume()
            yield

    async def ask(self, context: InputContext, params: object) -> ElicitResult:
        """The server's question stays in the page until the user answers it."""
        task_id = context.task.task_id if context.task else None
        answer = self.answers[task_id] = asyncio.get_running_loop().create_future()
        return ElicitResult(action="accept", content={"milk": await answer})

    async def order(self, request: Request) -> Response:
        """Start an order. If the browser sends it again, it is the same one."""
        order_id = request.path_params["order_id"]
        await self.client.start_tool("brew", {"cups": 1}, idempotency_key=order_id)
        return Response(status_code=202)

    async def answer(self, request: Request) -> Response:
        """Answer the question of an order."""
        for record in await self.client.records():
            if record.idempotency_key == request.path_params["order_id"] and record.task_id in self.answers:
                self.answers.pop(record.task_id).set_result(request.query_params["milk"])
        return Response(status_code=202)

    async def orders(self, request: Request) -> Response:
        """Every order, as the journal has it."""
        return JSONResponse([shown(record) for record in await self.client.records()])

    def app(self) -> Starlette:
        """The service as an ASGI application."""
        routes = [
            Route("/", lambda request: FileResponse(Path(__file__).with_name("web_page.html"))),
            Route("/orders", self.orders),
            Route("/orders/{order_id}", self.order, methods=["PUT"]),
            Route("/orders/{order_id}/answer", self.answer, methods=["POST"]),
            Route("/kill", lambda request: os.kill(os.getpid(), signal.SIGKILL), methods=["POST"]),
        ]
        return Starlette(routes=routes, lifespan=self.lifespan)


def shown(record: TaskRecord) -> dict[str, object]:
    """What a user may see of a record: not the task ID, which is a credential."""
    task = record.task
    result = task.result["content"][0]["text"] if task and task.result else None
    message = task.status_message if task else None
    return {"id": record.idempotency_key, "status": record.status, "message": message, "result": result}


def main(port: str = "8080") -> None:
    """Start the coffee machine and the service, and start the service again whenever it was killed."""
    with TemporaryDirectory(prefix="web-service-") as folder, running_server(Path(folder) / "log") as url:
        was_killed = True
        while was_killed:
            with python(__file__, "serve", url, str(Path(folder) / "journal.db"), port) as service:
                print(f"The service is process {service.pid}. Open http://127.0.0.1:{port}", flush=True)
                was_killed = service.wait() == -signal.SIGKILL


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["serve", url, journal, port]:
                app = CoffeeService(url, journal).app()
                uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
            case arguments:
                main(*arguments)
    except KeyboardInterrupt:
        sys.exit(130)
