"""A client over a session of the SDK's 1.x, or over a FastMCP client that has one."""

from __future__ import annotations

import os
from typing import Any

from .engine import Engine, OnAbandon
from .inputs import ElicitationCallback, RootsCallback, SamplingCallback
from .journal.base import Journal, Scope
from .journal.sqlite import chosen_journal
from .policy import PollPolicy
from .sessions.hosts import address_of
from .sessions.limits import Limits
from .sessions.sdk_1 import Sdk1Session, callbacks_of_host
from .sessions.task_wish import TaskWish

__all__ = ["engine_over"]


def engine_over(
    client: Any,
    *,
    journal: Journal | str | os.PathLike[str] | None,
    endpoint: str | None,
    principal: str,
    elicitation: ElicitationCallback | None,
    sampling: SamplingCallback | None,
    roots: RootsCallback | None,
    poll: PollPolicy | None,
    on_abandon: OnAbandon,
    wish: TaskWish,
) -> Engine:
    """An engine over a host's session.

    Raises:
        ValueError: The server has no address, and no ``endpoint`` is given; or ``on_abandon`` is no word
            for it.
    """
    if on_abandon not in ("detach", "cancel"):
        raise ValueError(f'on_abandon must be "detach" or "cancel", got {on_abandon!r}')
    address = address_of(client)
    endpoint = endpoint or (address.endpoint if address is not None else None)
    if endpoint is None:
        raise ValueError(
            "the journal needs a name for this server, and a session of the SDK's does not know its address; "
            'give it one that stays: TasksClient(session, endpoint="my-server")'
        )

    def current() -> Any:
        return getattr(client, "session", client)

    policy = poll or PollPolicy()
    inputs = callbacks_of_host(current, elicitation=elicitation, sampling=sampling, roots=roots)
    return Engine(
        session=Sdk1Session(
            current,
            endpoint=endpoint,
            inputs=inputs,
            ephemeral=address is not None and address.ephemeral,
            limits=Limits.of_host(policy.polls_in_flight),
            wish=wish,
        ),
        journal=chosen_journal(journal),
        inputs=inputs,
        policy=policy,
        scope=Scope(endpoint, principal),
        on_abandon=on_abandon,
    )
