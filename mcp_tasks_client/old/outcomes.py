"""How a task ends: what a snapshot says of it, and what is left of the task then."""

from __future__ import annotations

from .events import Action, Finish, Publish, Report, Save, StopAsking
from .states import Cancelled, Completed, Failed, Finished, Observing, Outcome, Violated
from .wire import Task, read_rpc_error


def outcome_of(task: Task, *, seed: bool) -> Outcome | None:
    """How the task ended, or ``None``: it has not, or a seed does not say how and a poll will."""
    match task.status:
        case "completed" if task.result is not None:
            return Completed(result=task.result)
        case "completed" if not seed:
            return Violated(message="The task is completed, but the reply holds no result.")
        case "failed" if task.error is not None or not seed:
            error = read_rpc_error(task.error)
            return Failed(
                code=error.code,
                message=error.message or task.status_message or "",
                data=error.data,
                status_message=task.status_message,
            )
        case "cancelled":
            return Cancelled(status_message=task.status_message)
        case _:
            return None


def finish(
    outcome: Outcome, state: Observing, reports: tuple[Report, ...] = ()
) -> tuple[Finished, tuple[Action, ...]]:
    """The end, and who has to hear of it."""
    # The payload is in the outcome; a second copy of a large result would be written with it.
    task = state.task.model_copy(update={"result": None, "error": None, "input_requests": None})
    published = (Publish(state.task),) if state.task.terminal else ()
    return Finished(outcome=outcome, task=task), (Save(), StopAsking(), *reports, *published, Finish(outcome))
