"""A job runner that may be killed at any time: each job has a key, so that it runs once.

::

    pip install -e ".[examples]"
    python examples/job_runner.py

Runs a list of jobs, kills the runner in the middle with SIGKILL, and starts it again with the same list.
Each job is an order at ``demo_server.py``, whose results are numbered: three jobs, three orders.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from mcp_types import ElicitResult
from shared import python, running_server, text_of

from mcp_tasks_client import OutcomeUnknownError, TasksClient

JOBS = {"2026-11-25/breakfast": 1, "2026-11-25/lunch": 2, "2026-11-25/dinner": 3}
"""The jobs and their arguments. A job's name is the key of its call."""


async def ask_person(context: object, params: object) -> ElicitResult:
    """The server's question."""
    return ElicitResult(action="accept", content={"milk": "oat"})


async def run_jobs(url: str, journal: Path) -> None:
    """Run every job that has not run yet, and print the results of all."""
    async with TasksClient(url, journal=journal, elicitation=ask_person) as client:
        started = {}
        for job, cups in JOBS.items():
            try:
                started[job] = await client.start_tool("brew", {"cups": cups}, idempotency_key=job)
            except OutcomeUnknownError as error:
                # The job may have run. Whether it may run twice is for a person to say.
                print(f"     {job}: {error}")
        print("     all jobs are at the server", flush=True)
        for job, handle in started.items():
            print(f"     {job}: {text_of(await handle.result())}", flush=True)


def main() -> None:
    """Start the runner, kill it, and start it again."""
    with TemporaryDirectory(prefix="job-runner-") as folder, running_server(Path(folder) / "log") as url:
        command = (__file__, url, str(Path(folder) / "journal.db"))
        print("1  The runner starts, and is killed with SIGKILL:")
        with python(*command, stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            print(first.stdout.readline(), end="")  # then the end of the block kills it
        print("2  The runner starts again with the same jobs:")
        with python(*command, stdout=subprocess.PIPE, text=True) as second:
            told = second.communicate(timeout=60)[0]
        print(told, end="")
        if not all(f"Order {number}:" in told for number in (1, 2, 3)):
            sys.exit("there should be three orders, one for each job")
        print("3  Three jobs, three orders: no job has run twice.")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # stdout is a TextIOWrapper
    if sys.argv[1:]:
        anyio.run(run_jobs, sys.argv[1], Path(sys.argv[2]))
    else:
        main()
