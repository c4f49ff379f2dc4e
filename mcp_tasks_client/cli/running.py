"""Running a verb in an event loop until it ends, fails or is told to stop, and the exit code of each."""

from __future__ import annotations

import asyncio
import logging
import signal
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress

import typer

import mcp_tasks_client as tasks

from .exits import CommandError, Exit, as_command_error
from .journal import Where
from .output import Output, fail_to_write

__all__ = ["SIGTERM", "run"]

SIGTERM = "SIGTERM"
"""The message of a cancellation by that signal."""


def run(main: Callable[[], Awaitable[Exit | None]], output: Output, where: Where) -> None:
    """Run a verb, which SIGINT and SIGTERM cancel.

    Raises:
        typer.Exit: Always, with the exit code.
    """
    # Failures of requests are shown by the progress of a call. A log would draw over it.
    logging.getLogger("mcp_tasks_client").setLevel(logging.ERROR)
    raise typer.Exit(_run_to_exit(main, output, where))


def _run_to_exit(main: Callable[[], Awaitable[Exit | None]], output: Output, where: Where) -> int:
    failure: CommandError
    try:
        with asyncio.Runner() as runner:
            return runner.run(_run_until_terminated(main)) or Exit.RESULT
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except CommandError as error:
        failure = error
    except tasks.JournalError as error:
        failure = as_command_error(error)
        failure.next = where.line("doctor")
    except tasks.TasksClientError as error:
        failure = as_command_error(error)
    except OSError as error:
        return fail_to_write(error, output)
    except Exception as error:  # a fault of ours, which has to be seen
        output.note(traceback.format_exc())
        failure = CommandError(Exit.UNEXPECTED, f"{type(error).__name__}: {error}")
    with suppress(OSError):  # stderr is closed as well
        output.fail(failure)
    return failure.exit


async def _run_until_terminated(main: Callable[[], Awaitable[Exit | None]]) -> Exit | None:
    """Run a verb until it ends, or SIGTERM stops it. The event loop's runner sees to SIGINT."""
    task, is_terminated = asyncio.current_task(), False
    assert task is not None

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel(SIGTERM)

    with suppress(NotImplementedError):  # on Windows, where no process is asked to end
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await main()
    except asyncio.CancelledError:
        if is_terminated:
            return Exit.TERMINATED
        raise
