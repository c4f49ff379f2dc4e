"""A web service whose users' tool calls survive its restart, watched in a browser.

::

    pip install -e ".[examples]"
    python examples/web_service.py

Two instances of the service share one journal. Open the first address that it prints, order coffee, and press
"Kill this instance". The process is killed with SIGKILL and started again, and the same order goes on. The
page of the second instance shows the same orders, and answers their questions, also while the first one is
dead.

The service keeps no state of its own: what the page shows comes from the journal. The ID that the browser
makes for each order is the key of its call.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import uvicorn
from mcp_types import ElicitResult
from shared import python, running_server
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
)


class CoffeeService:
    """Orders of a coffee machine, by their IDs."""

    def __init__(self, url: str, journal: str) -> None:
        self.client = TasksClient(url, journal=journal, elicitation="later")

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """See the orders through, for as long as the service runs."""
        async with self.client, anyio.create_task_group() as tasks:
            tasks.start_soon(self.take_over)
            yield
            tasks.cancel_scope.cancel()

    async def take_over(self) -> None:
        """Take up what an instance has left that was killed, now or later."""
        async for _ in self.client.adopt():
            pass  # it is driven in the background

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
        """Every order, as the journal has it. An outcome that was shown counts as delivered."""
        records = await self.client.records()
        questions = await self.client.questions()
        for record in records:
            if record.finished and record.delivered_at is None:
                await self.client.acknowledge(record)
        return JSONResponse([shown(record, questions) for record in records])

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


def shown(record: TaskRecord, questions: list[Question]) -> dict[str, object]:
    """What a user may see of a record: not the task ID, which is a credential."""
    task = record.task
    return {
        "id": record.idempotency_key,
        "status": record.status,
        "message": task.status_message if task else None,
        "result": task.result["content"][0]["text"] if task and task.result else None,
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
        journal = str(Path(folder) / "journal.db")
        services: dict[str, subprocess.Popen[bytes]] = {}
        while all(service.poll() in (None, -signal.SIGKILL) for service in services.values()):
            for port in ports or ("8080", "8081"):
                if port not in services or services[port].poll() is not None:
                    service = stack.enter_context(python(__file__, "serve", url, journal, port))
                    services[port] = service
                    print(f"The service is process {service.pid}. Open http://127.0.0.1:{port}", flush=True)
            time.sleep(0.2)


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["serve", url, journal, port]:
                app = CoffeeService(url, journal).app()
                uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
            case ports:
                main(*ports)
    except KeyboardInterrupt:
        sys.exit(130)
