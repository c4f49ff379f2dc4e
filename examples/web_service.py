"""A web service whose users' tool calls survive its restart, watched in a browser.

::

    pip install -e ".[examples]"
    python examples/web_service.py

Two instances of the service share one journal. Open the first address that it prints, order coffee, and press
"Kill this instance". The process is killed with SIGKILL and started again, and the same order goes on. The
page of the second instance shows the same orders, and answers their questions, also while the first one is
dead.

The ID that the browser makes for each order is the key of its call. The journal has the orders that are being
made, and the questions that they wait with. How an order has ended goes into the service's own database, by
``client.deliver()``.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import uvicorn
from mcp_types import CallToolResult, ElicitResult
from shared import python, running_server, text_of
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from mcp_tasks_client import (
    AlreadyAnsweredError,
    Question,
    QuestionWithdrawnError,
    TaskRecord,
    TasksClient,
    TasksClientError,
)


class CoffeeService:
    """Orders of a coffee machine, by their IDs."""

    def __init__(self, url: str, journal: str, database: str) -> None:
        self.client = TasksClient(url, journal=journal, elicitation="later")
        self.database = database
        self.run("CREATE TABLE IF NOT EXISTS orders (id PRIMARY KEY, status, result)")

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """See each order to its end, whichever instance has begun it, for as long as the service runs."""
        async with self.client, anyio.create_task_group() as tasks:
            tasks.start_soon(self.client.deliver, self.store)
            yield
            tasks.cancel_scope.cancel()

    def store(self, record: TaskRecord, outcome: CallToolResult | TasksClientError) -> None:
        """Store how an order has ended. After a kill the same end may come once more."""
        result = text_of(outcome) if isinstance(outcome, CallToolResult) else str(outcome)
        row = (record.idempotency_key, record.status, result)
        self.run("INSERT INTO orders VALUES (?, ?, ?) ON CONFLICT DO NOTHING", *row)

    def run(self, statement: str, *values: object) -> list[tuple[str, ...]]:
        """Run a statement in the service's own database, and commit."""
        with closing(sqlite3.connect(self.database)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    async def order(self, request: Request) -> Response:
        """Start an order. If the browser sends it again, it is the same one."""
        order_id = request.path_params["order_id"]
        await self.client.start_tool("brew", {"cups": 1}, idempotency_key=order_id)
        return Response(status_code=202)

    async def answer(self, request: Request) -> Response:
        """Answer a question, whichever instance drives its order. The first answer counts."""
        choice = ElicitResult(action="accept", content={"milk": request.query_params["milk"]})
        try:
            await self.client.answer(request.path_params["question_id"], choice)
        except (AlreadyAnsweredError, QuestionWithdrawnError):
            return Response("Somebody was faster.", status_code=409)
        except ValueError:
            return Response("This is no answer to the question.", status_code=422)
        return Response(status_code=202)

    async def orders(self, request: Request) -> Response:
        """Every order: those that have ended, and those that are being made."""
        records = await self.client.records(pending=True)
        questions = await self.client.questions()
        ended = {row[0]: ended_order(*row) for row in self.run("SELECT id, status, result FROM orders")}
        open_ones = [open_order(one, questions) for one in records if one.idempotency_key not in ended]
        return JSONResponse([*ended.values(), *open_ones])

    def app(self) -> Starlette:
        """The service as an ASGI application."""
        routes = [
            Route("/", lambda request: FileResponse(Path(__file__).with_name("web_page.html"))),
            Route("/orders", self.orders),
            Route("/orders/{order_id}", self.order, methods=["PUT"]),
            Route("/questions/{question_id}", self.answer, methods=["POST"]),
            Route("/kill", lambda request: os.kill(os.getpid(), signal.SIGKILL), methods=["POST"]),
        ]
        return Starlette(routes=routes, lifespan=self.lifespan)


def ended_order(order_id: str, status: str, result: str) -> dict[str, object]:
    """What a user sees of an order that has ended."""
    return {"id": order_id, "status": status, "result": result, "questions": []}


def open_order(record: TaskRecord, questions: list[Question]) -> dict[str, object]:
    """What a user may see of an order that is being made: not the task ID, which is a credential."""
    return {
        "id": record.idempotency_key,
        "status": "being stored" if record.finished else record.status,
        "message": record.task.status_message if record.task else None,
        "questions": [
            {"id": question.question_id, "message": getattr(question.params, "message", None)}
            for question in questions
            if question.record_id == record.record_id
        ],
    }


def main(*ports: str) -> None:
    """Start the coffee machine and an instance of the service at each port, again whenever one was killed."""
    with (
        TemporaryDirectory(prefix="web-service-") as folder,
        running_server(Path(folder) / "log") as url,
        ExitStack() as stack,
    ):
        files = [str(Path(folder) / name) for name in ("journal.db", "orders.db")]
        services: dict[str, subprocess.Popen[bytes]] = {}
        while all(service.poll() in (None, -signal.SIGKILL) for service in services.values()):
            for port in ports or ("8080", "8081"):
                if port not in services or services[port].poll() is not None:
                    service = stack.enter_context(python(__file__, "serve", url, *files, port))
                    services[port] = service
                    print(f"The service is process {service.pid}. Open http://127.0.0.1:{port}", flush=True)
            time.sleep(0.2)


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["serve", url, journal, database, port]:
                app = CoffeeService(url, journal, database).app()
                uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
            case ports:
                main(*ports)
    except KeyboardInterrupt:
        sys.exit(130)
