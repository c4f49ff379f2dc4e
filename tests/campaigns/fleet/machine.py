"""A fleet on one machine, over one file: replicas are killed again and again, while others answer."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from mcp_tasks_client import Environment, Inbox, SqliteJournal, TasksClient

from ..lives import LIMIT_S
from ..outcome import Campaign
from ..torture.evidence import Line
from ..torture.run import servers
from .dropped_in import WAYS, Through, opened
from .evidence import EVIDENCE, Evidence
from .fleet import Fleet
from .verdict import judge

if TYPE_CHECKING:
    import mcp

__all__ = ["run_on_one_machine"]

_OURS: Final = 0
"""The life that makes the calls."""

_REPLICAS: Final = 2
_WORK_S: Final = 0.3
_LEASE_S: Final = 5.0


def run_on_one_machine(
    folder: Path,
    seed: int,
    *,
    kills: int,
    tasks: int,
    pause_s: tuple[float, float],
    who_answer: int = 2,
    through: Through | Literal["each"] = "client",
) -> Campaign:
    """Kill one of two replicas again and again, while others answer what their tasks ask.

    Args:
        folder: For the journal and the logs.
        seed: Decides about instants.
        kills: How many replicas are killed.
        tasks: How many calls are made in all, as the kills go on.
        pause_s: From how many to how many seconds after a replica is ready it is killed.
        who_answer: How many processes answer, each whatever is asked.
        through: How calls are made by the host that leaves them, and how replicas adopt them.
    """
    began, chance = time.monotonic(), random.Random(seed)
    journal = folder / "journal.sqlite3"
    with servers(seed, folder) as server, ExitStack() as stack:
        fleet = Fleet(server.endpoint("fastmcp"), journal, folder, lease_s=_LEASE_S)
        stack.callback(fleet.close)
        host = _Host(fleet.url, journal)
        for life in [fleet.answer() for _ in range(who_answer)]:
            fleet.wait_for(life)
        ways, started_by = _ways(through), _ways(through)
        replicas = [fleet.replica(None, next(ways)) for _ in range(_REPLICAS)]
        started = 0
        for number in range(kills + 1):
            share = tasks * (number + 1) // (kills + 1)
            if share > started:
                anyio.run(host.start, range(started, share), next(started_by))
            started = share
            if number < kills:
                victim = replicas.pop(chance.randrange(_REPLICAS))
                fleet.wait_for(victim)
                time.sleep(chance.uniform(*pause_s))
                with fleet.disturbing("killed", victim):
                    fleet.kill(victim)
                replicas.append(fleet.replica(None, next(ways)))
        fleet.wait_for_deliveries(tasks, [line.intent for line in host.lines])
        evidence = Evidence(
            lease_s=_LEASE_S,
            began=began,
            tasks=tasks,
            calm_since=None,
            lines=sorted(
                [*fleet.lines(), *((_OURS, line) for line in host.lines)], key=lambda pair: pair[1].at
            ),
            requests=server.ledger(),
            disturbances=fleet.disturbances,
            ended_at=fleet.ended_at,
            killed_at=fleet.killed_at,
            unfinished=anyio.run(_unfinished, journal),
            on_one_machine=True,
        )
        evidence.save(folder / EVIDENCE)
        return judge(evidence)


def _ways(through: Through | Literal["each"]) -> Iterator[Through]:
    return cycle(WAYS if through == "each" else [through])


async def _unfinished(path: Path) -> int:
    """How many records are not delivered, once the replicas have acknowledged what they have had."""
    async with SqliteJournal(path) as journal, Inbox(journal) as inbox:
        with anyio.move_on_after(3 * _LEASE_S):
            while await inbox.records(pending=True):
                await anyio.sleep(0.1)
        return len(await inbox.records(pending=True))


class _Host:
    """Makes calls, and leaves them to the fleet.

    Attributes:
        lines: What it got to know all the same.
    """

    def __init__(self, url: str, journal: Path) -> None:
        self.lines: list[Line] = []
        self._url = url
        self._path = journal

    async def start(self, numbers: range, through: Through) -> None:
        """Make calls of these numbers."""
        if through == "client":
            async with TasksClient(self._url, journal=self._path) as client:
                for number in numbers:
                    await client.start_tool("greet", _arguments(number), idempotency_key=f"call-{number}")
        else:
            environment = Environment(lease_s=_LEASE_S)
            journal = SqliteJournal(self._path)
            async with (
                journal,
                Inbox(journal) as inbox,
                opened(through, self._url, str(self._path), _OURS, environment) as session,
            ):
                for number in numbers:
                    await self._start_and_leave(session, inbox, number)

    async def _start_and_leave(self, session: mcp.Client, inbox: Inbox, number: int) -> None:
        """Make a call by the host's own client, and go away from it when it has become a task."""
        had = {record.record_id for record in await inbox.records()}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._call, session, number)
            with anyio.fail_after(LIMIT_S):
                while not any(one.task_id and one.record_id not in had for one in await inbox.records()):
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()

    async def _call(self, session: mcp.Client, number: int) -> None:
        result = await session.call_tool("greet", _arguments(number))
        told = json.loads(result.content[0].text)  # type: ignore[union-attr]  # a text
        self.lines.append(Line(at=time.monotonic(), what="delivered", **told))


def _arguments(number: int) -> dict[str, Any]:
    return {"intent": f"call-{number}", "seconds": _WORK_S}
