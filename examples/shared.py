"""What the examples share: the coffee machine's address, a person who answers, and somebody who tells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, TextContent

from mcp_tasks_client import Task


async def ask_person(context: Any, params: ElicitRequestParams) -> ElicitResult:
    """The server's question: typed by the person at the terminal, if there is one."""
    milk = await typed(f"     ? {params.message} ", default="oat", within_s=8)
    return ElicitResult(action="accept", content={"milk": milk})


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


def text_of(result: CallToolResult) -> str:
    """What the tool said."""
    said = " ".join(block.text for block in result.content if isinstance(block, TextContent))
    if result.is_error:
        raise RuntimeError(f"the tool failed: {said}")
    return said


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
        yield server.stdout.readline().strip() or sys.exit(log.read_text())
