"""An agent's run that is interrupted by a question, and goes on in another process later.

::

    pip install -e ".[examples]"
    python examples/interrupt.py

An agent framework such as LangGraph ends a run where a person is needed, and stores an *interrupt*. Whoever
has the answer later resumes the run, in whichever process. Here the file ``interrupt.json`` is that store. It
holds what the person is asked, the ID of the question, and the reference of the call. The tool runs once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from mcp_types import ElicitResult
from shared import python, running_server, text_of

from mcp_tasks_client import InputUnansweredError, TasksClient


async def run(client: TasksClient) -> dict[str, Any]:
    """The node of the graph that calls the tool. Returns its result, or an interrupt to be stored."""
    try:
        return {"result": text_of(await client.call_tool("brew", {"cups": 2}))}
    except InputUnansweredError as error:
        (question,) = error.questions
        return {
            "asks": getattr(question.params, "message", None),
            "question_id": question.question_id,
            "reference": error.handle.reference if error.handle else None,
        }


async def resume(client: TasksClient, interrupt: dict[str, Any], milk: str) -> str:
    """The same node, when the graph is resumed with an answer."""
    answer = ElicitResult(action="accept", content={"milk": milk})
    await client.answer(interrupt["question_id"], answer)
    handle = await client.attach(interrupt["reference"])
    return text_of(await handle.result())


async def first(url: str, journal: str) -> dict[str, Any]:
    """A process that runs into the question, and ends."""
    async with TasksClient(url, journal=journal) as client:
        return await run(client)


async def second(url: str, journal: str, interrupt: dict[str, Any]) -> str:
    """A process that has the answer."""
    async with TasksClient(url, journal=journal) as client:
        return await resume(client, interrupt, "oat")


def main() -> None:
    """Run the graph in one process, and resume it in another one."""
    with TemporaryDirectory(prefix="interrupt-") as folder, running_server(Path(folder) / "log") as url:
        store = Path(folder) / "interrupt.json"
        arguments = (url, str(Path(folder) / "journal.db"), str(store))
        print("1  A process calls the tool, and ends with an interrupt:")
        with python(__file__, "first", *arguments) as process:
            process.wait(60)
        print(f"     {json.loads(store.read_text())['asks']}")
        print("2  Another process resumes it with the answer:")
        with python(__file__, "second", *arguments, stdout=subprocess.PIPE, text=True) as process:
            told = process.communicate(timeout=60)[0]
        print(told, end="")
        if "Order 1: 2 cups of coffee with oat milk" not in told:
            sys.exit("the first order should be done")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # stdout is a TextIOWrapper
    match sys.argv[1:]:
        case ["first", url, journal, store]:
            Path(store).write_text(json.dumps(anyio.run(first, url, journal)))
        case ["second", url, journal, store]:
            print(f"     → {anyio.run(second, url, journal, json.loads(Path(store).read_text()))}")
        case _:
            main()
