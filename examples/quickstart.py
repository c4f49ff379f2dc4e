"""Kill a client in the middle of a tool call, and let another bring the result home.

::

    pip install "mcp-tasks-client[examples]"
    python examples/quickstart.py

Starts a real FastMCP server (``demo_server.py``) on loopback. A first client calls its slow tool
and is killed without warning. A second client, in a process of its own, finds the call in the
journal, answers the server's question and gets the result. Exits with 0 only if that result came
from the task that the first client had started.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import anyio
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, TextContent

from mcp_tasks_client import Task, TaskRecord, TasksClient

# ── the two clients: this is all there is to it ──────────────────────────────────────────────


async def call(url: str, journal: Path) -> None:
    """The first client makes an ordinary call. It will not live to see the result."""
    async with TasksClient(url, journal=journal, elicitation=ask_person) as client:
        result = await client.call_tool("brew", {"cups": 2}, on_update=narrator())
        print(text_of(result))


async def resume(url: str, journal: Path) -> None:
    """The second client takes up whatever the journal holds."""
    async with TasksClient(url, journal=journal, elicitation=ask_person) as client:
        for handle in await client.resume():
            tell = narrator()
            async for task in handle.updates():
                tell(task)
            result = await handle.result()
            print(f"     → {text_of(result)}")
            resumed_ids(journal).write_text(f"{handle.task_id}\n")


async def ask_person(context: Any, params: ElicitRequestParams) -> ElicitResult:
    """The server's question: typed by the person at the terminal, if there is one."""
    milk = await typed(f"     ? {params.message} ", default="oat", within_s=8)
    return ElicitResult(action="accept", content={"milk": milk})


async def journaled(url: str, journal: Path) -> list[TaskRecord]:
    """What the journal knows. Nothing is sent to the server."""
    async with TasksClient(url, journal=journal) as client:
        return await client.records()


# ── the story around them ────────────────────────────────────────────────────────────────────

CLIENT_LIMIT_S = 60
"""Seconds after which a client gives up; a run takes about a quarter of that."""


def main() -> None:
    """Play the whole story, and clean up whatever happens."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(TemporaryDirectory(prefix="quickstart-")))
        journal = folder / "journal.db"

        print("1  A coffee machine starts: a FastMCP server, in a process of its own.")
        url = cleanup.enter_context(running_server(folder / "server.log"))

        print("2  A client orders two cups, which takes a while …")
        call_and_die(url, journal)
        print("   … and is killed with SIGKILL. Its journal holds:")
        orphan = only(anyio.run(journaled, url, journal))

        print("3  A second client opens the same journal.")
        with python(__file__, "resume", url, str(journal)) as second:
            if second.wait() != 0:
                fail("the second client did not get to the end; its error is above")

        if not resumed_ids(journal).exists():
            fail("the second client found nothing to resume")
        if resumed_ids(journal).read_text().split() != [orphan.task_id]:
            fail("the result came from another task than the one that the first client had started")
        if anyio.run(journaled, url, journal):
            fail("the result was delivered, and the journal still holds the call")
    print("4  It was the same task, from beginning to end. The result is delivered, so the journal is empty.")


def call_and_die(url: str, journal: Path) -> None:
    """Run the first client until the server is at work, then kill it."""
    with python(__file__, "call", url, str(journal), stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for line in first.stdout:
            print(line, end="")
            if "working: " in line:
                return  # which kills it
    fail("the first client ended before it could be killed; its error is above")


@contextmanager
def python(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A Python process, killed at the end of the block if it still runs."""
    with subprocess.Popen([sys.executable, *arguments], **options) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def running_server(log: Path) -> Iterator[str]:
    """The coffee machine's address. It has a session of its own, so that Ctrl-C is left to us."""
    script = str(Path(__file__).with_name("demo_server.py"))
    pipe = subprocess.PIPE
    with (
        log.open("w") as stderr,
        python(script, stdin=pipe, stdout=pipe, stderr=stderr, text=True, start_new_session=True) as server,
    ):
        assert server.stdout is not None
        yield server.stdout.readline().strip() or fail(f"the server did not start:\n{log.read_text()}")


def only(records: list[TaskRecord]) -> TaskRecord:
    """The one record that there must be, shown. A task ID is a credential: never all of it."""
    for record in records:
        print(f"     {record.tool}  task {(record.task_id or '-')[:6]}…  {record.status}")
    if len(records) != 1 or records[0].task_id is None:
        fail(f"the journal should hold one task, and has {len(records)} records")
    return records[0]


def narrator() -> Callable[[Task], None]:
    """A callback that prints a task's status whenever it has moved."""
    told = ""

    def tell(task: Task) -> None:
        nonlocal told
        news = f"{task.status}: {task.status_message}" if task.status_message else task.status
        if news != told:
            print(f"     {news}")
            told = news

    return tell


async def typed(prompt: str, *, default: str, within_s: float) -> str:
    """A line from the terminal; the default if there is no terminal, or nobody types in time."""
    print(f"{prompt}[{default}] ", end="", flush=True)
    # Windows cannot wait for its console with a time limit.
    if sys.stdin.isatty() and sys.platform != "win32":
        with anyio.move_on_after(within_s):
            await anyio.wait_readable(sys.stdin)
            return sys.stdin.readline().strip() or default
    print(default)
    return default


def text_of(result: CallToolResult) -> str:
    """What the tool said."""
    said = " ".join(block.text for block in result.content if isinstance(block, TextContent))
    if result.is_error:
        raise RuntimeError(f"the tool failed: {said}")
    return said


def resumed_ids(journal: Path) -> Path:
    """Where the second client leaves the ID of the task that it brought home."""
    return journal.with_name("resumed")


def fail(reason: str) -> NoReturn:
    """End with a message and a status other than 0."""
    sys.exit(f"quickstart failed: {reason}")


async def bounded(client: Callable[[str, Path], Any], url: str, journal: Path) -> None:
    """Run a client, but not for ever."""
    with anyio.fail_after(CLIENT_LIMIT_S):
        await client(url, journal)


if __name__ == "__main__":
    # Several processes tell this story, through pipes too: each line goes out when it is told.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        match sys.argv[1:]:
            case []:
                main()
            case [("call" | "resume") as part, url, journal]:
                anyio.run(bounded, {"call": call, "resume": resume}[part], url, Path(journal))
            case _:
                fail("it takes no arguments")
    except KeyboardInterrupt:
        sys.exit(130)
