"""Starts tasks, has workers killed while others answer, and says what did not hold."""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from mcp_tasks_client import Inbox, SqliteJournal, TasksClient

from ..answering import answering
from ..lives import LIMIT_S, Lives, takeovers
from ..outcome import Campaign
from ..torture.evidence import Line
from ..torture.run import servers
from .host import LEASE_S, WAYS, Through, opened

if TYPE_CHECKING:
    import mcp

__all__ = ["run"]

_OURS: Final = 0
"""The life that makes the calls."""

_WORKERS: Final = 2
_WORK_S: Final = 0.3


class Workers(Lives):
    """The processes of a campaign: workers, and those who answer."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(folder)
        self.url = url
        self.journal = folder / "journal.sqlite3"
        self.ours: list[Line] = []

    def work(self, through: Through) -> int:
        """Begin a worker."""
        life, log = self.next_life()
        return self.begin(["-m", f"{__package__}.host", through, self.url, self.journal, log, life])

    def answer(self) -> int:
        """Begin a process that answers."""
        life, log = self.next_life()
        return self.begin(answering(self.journal, log, life))

    def lines(self) -> list[tuple[int, Line]]:
        ours = [(_OURS, line) for line in self.ours]
        return sorted([*super().lines(), *ours], key=lambda pair: pair[1].at)


def run(
    folder: Path,
    seed: int,
    *,
    kills: int,
    tasks: int,
    pause_s: tuple[float, float],
    who_answer: int = 2,
    through: Through | Literal["each"] = "client",
) -> Campaign:
    """Kill one of two workers again and again, while others answer what their tasks ask.

    Args:
        folder: For the journal and the logs.
        seed: Decides about instants.
        kills: How many workers are killed.
        tasks: How many calls are made in all, as the kills go on.
        pause_s: From how many to how many seconds after a worker is ready it is killed.
        who_answer: How many processes answer, each whatever is asked.
        through: How calls are made by the host that leaves them, and how workers adopt them.
    """
    ways = cycle(WAYS if through == "each" else [through])
    started_by = cycle(WAYS if through == "each" else [through])
    chance = random.Random(seed)
    with servers(seed, folder) as server, ExitStack() as stack:
        processes = Workers(server.endpoint("fastmcp"), folder)
        stack.callback(processes.end)
        for life in [processes.answer() for _ in range(who_answer)]:
            processes.wait_for(life)
        workers = [processes.work(next(ways)) for _ in range(_WORKERS)]
        started = 0
        for number in range(kills + 1):
            share = tasks * (number + 1) // (kills + 1)
            if share > started:
                way = next(started_by)
                start = _start if way == "client" else partial(_start_by_host, through=way)
                anyio.run(start, processes, range(started, share))
            started = share
            if number == kills:
                break
            victim = workers.pop(chance.randrange(_WORKERS))
            processes.wait_for(victim)
            time.sleep(chance.uniform(*pause_s))
            processes.kill(victim)
            workers.append(processes.work(next(ways)))
        processes.wait_for_deliveries(tasks, [line.intent for line in processes.ours])
        lines, campaign = processes.lines(), Campaign()
        _judge(campaign, processes, lines, server.ledger(), tasks)
        return campaign


async def _start(processes: Workers, numbers: range) -> None:
    """Make calls in a process that leaves them: ours."""
    async with TasksClient(processes.url, journal=processes.journal) as client:
        for number in numbers:
            await client.start_tool("greet", _arguments(number), idempotency_key=f"call-{number}")


async def _start_by_host(processes: Workers, numbers: range, through: Through) -> None:
    """Make calls by a host's own client, and go away from each when it has become a task."""
    journal = SqliteJournal(processes.journal)
    async with (
        journal,
        Inbox(journal) as inbox,
        opened(through, processes.url, str(processes.journal), "0") as session,
    ):
        for number in numbers:
            had = {record.record_id for record in await inbox.records()}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_call, processes, session, number)
                with anyio.fail_after(LIMIT_S):
                    while not any(one.task_id and one.record_id not in had for one in await inbox.records()):
                        await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()


async def _call(processes: Workers, session: mcp.Client, number: int) -> None:
    result = await session.call_tool("greet", _arguments(number))
    told = json.loads(result.content[0].text)  # type: ignore[union-attr]  # a text
    processes.ours.append(Line(at=time.monotonic(), what="delivered", **told))


def _arguments(number: int) -> dict[str, Any]:
    return {"intent": f"call-{number}", "seconds": _WORK_S}


def _judge(
    campaign: Campaign,
    processes: Workers,
    lines: list[tuple[int, Line]],
    ledger: list[Any],
    tasks: int,
) -> None:
    figures = campaign.figures
    figures["workers killed"] = len(processes.killed_at)
    figures["tasks"] = tasks
    created = {one.task_id: one.intent for one in ledger if one.method == "tools/call" and one.task_id}
    ran = Counter(one.intent for one in ledger if one.method == "tools/call")
    campaign.expect_none("tools called twice")
    for intent, times in ran.items():
        if times > 1:
            campaign.breach("tools called twice", f"{intent} was called {times} times")
    # Answers: one is told to count, and that one is sent.
    campaign.expect_none("questions shown again", "answers that count and are not sent, or the reverse")
    campaign.expect_none("other errors")
    counts: defaultdict[str | None, list[str]] = defaultdict(list)
    for life, line in lines:
        if line.what == "given":
            counts[line.intent].append(line.text)
        elif line.what == "shown again":
            campaign.breach("questions shown again", f"{line.question} was shown again to life {life}")
        elif line.what in ("error", "lost"):
            campaign.breach("other errors", f"life {life}: {line.text}")
    sent: defaultdict[str | None, set[str]] = defaultdict(set)
    for one in ledger:
        for answer in one.answers.values():
            sent[created[one.task_id]].add(answer["content"]["name"])
    for intent in counts.keys() | sent.keys():
        if len(counts[intent]) != 1 or sent[intent] != {*counts[intent]}:
            campaign.breach(
                "answers that count and are not sent, or the reverse",
                f"{intent}: {counts[intent]} were told to count, and {sent[intent]} were sent",
            )
    # Results: each is delivered, and again only if the first who had it was killed.
    campaign.expect_none("tasks that nobody finished", "tasks delivered again, the first worker alive")
    delivered: defaultdict[str | None, list[tuple[int, Line]]] = defaultdict(list)
    for life, line in lines:
        if line.what == "delivered":
            delivered[line.intent].append((life, line))
    for intent in {*created.values()} - delivered.keys():
        campaign.breach("tasks that nobody finished", f"{intent} was never delivered")
    for intent, had_by in delivered.items():
        for (had, _), (_, again) in pairwise(had_by):
            if processes.killed_at.get(had, math.inf) > again.at:
                campaign.breach(
                    "tasks delivered again, the first worker alive",
                    f"{intent} was delivered again though life {had} lived",
                )
    figures["tasks delivered"] = len(delivered)
    figures["questions answered"] = sum(map(bool, counts.values()))
    figures["delivered again, the first worker killed"] = sum(
        len(had_by) - 1 for had_by in delivered.values()
    )
    taken_s = [taken_at - at for at, taken_at in takeovers(processes.killed_at, lines)]
    figures["longest takeover, s"] = round(max(taken_s, default=0.0), 2)
    campaign.expect_none("takeovers later than within two leases")
    for one_s in taken_s:
        if one_s > 2 * LEASE_S:
            campaign.breach("takeovers later than within two leases", f"a takeover took {one_s:.1f} s")
