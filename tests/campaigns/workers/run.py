"""Starts tasks, has workers killed while others answer, and says what did not hold."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from mcp_tasks_client import Inbox, TasksClient
from tests.real_server import first_line

from ..answering import answering
from ..torture.evidence import Line, read_log
from ..torture.run import ROOT, servers
from .host import LEASE_S, WAYS, Through, opened

if TYPE_CHECKING:
    import mcp

__all__ = ["Campaign", "run"]

LIMIT_S: Final = 120.0
_OURS: Final = 0
"""The life that makes the calls."""

_WORKERS: Final = 2
_WORK_S: Final = 0.3


@dataclass(slots=True, kw_only=True)
class Campaign:
    """What became of it.

    Attributes:
        broken: What did not hold, in sentences.
        figures: How often what happened, by its name.
    """

    broken: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


class Processes:
    """The processes of a campaign, by the number of their life."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.journal = folder / "journal.sqlite3"
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.killed_at: dict[int, float] = {}
        self.ours: list[Line] = []

    def work(self, through: Through) -> int:
        """Begin a worker."""
        life = len(self.running) + len(self.killed_at) + 1
        command = [sys.executable, "-m", f"{__package__}.host", through, self.url, str(self.journal)]
        return self._begin(life, [*command, str(self._log(life)), str(life)])

    def answer(self) -> int:
        """Begin a process that answers."""
        life = len(self.running) + len(self.killed_at) + 1
        return self._begin(life, answering(self.journal, self._log(life), life))

    def _begin(self, life: int, command: list[str]) -> int:
        errors = (self.folder / f"life-{life}.txt").open("wb")
        with errors:
            self.running[life] = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        return life

    def wait_for(self, life: int) -> None:
        out = self.running[life].stdout
        assert out is not None
        if first_line(out, LIMIT_S).strip() != b"ready":
            raise RuntimeError((self.folder / f"life-{life}.txt").read_text(errors="replace")[-2000:])

    def kill(self, life: int) -> None:
        process = self.running.pop(life)
        self.killed_at[life] = time.monotonic()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def lines(self) -> list[tuple[int, Line]]:
        lives = sorted([*self.running, *self.killed_at])
        found = [(life, line) for life in lives for line in read_log(self._log(life))]
        found += [(_OURS, line) for line in self.ours]
        return sorted(found, key=lambda pair: pair[1].at)

    def _log(self, life: int) -> Path:
        return self.folder / f"life-{life}.jsonl"


@contextmanager
def _processes(url: str, folder: Path) -> Iterator[Processes]:
    processes = Processes(url, folder)
    try:
        yield processes
    finally:
        for life in list(processes.running):
            processes.kill(life)


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
    with servers(seed, folder) as server, _processes(server.endpoint("fastmcp"), folder) as processes:
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
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            done = {line.intent for _, line in processes.lines() if line.what == "delivered"}
            if len(done) == tasks:
                break
            time.sleep(0.1)
        lines, campaign = processes.lines(), Campaign()
        _judge(campaign, processes, lines, server.ledger(), tasks)
        return campaign


async def _start(processes: Processes, numbers: range) -> None:
    """Make calls in a process that leaves them: ours."""
    async with TasksClient(processes.url, journal=processes.journal) as client:
        for number in numbers:
            await client.start_tool("greet", _arguments(number), idempotency_key=f"call-{number}")


async def _start_by_host(processes: Processes, numbers: range, through: Through) -> None:
    """Make calls by a host's own client, and go away from each when it has become a task."""
    journal = str(processes.journal)
    async with Inbox(journal) as inbox, opened(through, processes.url, journal, "0") as session:
        for number in numbers:
            had = {record.record_id for record in await inbox.records()}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_call, processes, session, number)
                with anyio.fail_after(LIMIT_S):
                    while not any(one.task_id and one.record_id not in had for one in await inbox.records()):
                        await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()


async def _call(processes: Processes, session: mcp.Client, number: int) -> None:
    result = await session.call_tool("greet", _arguments(number))
    told = json.loads(result.content[0].text)  # type: ignore[union-attr]  # a text
    processes.ours.append(Line(at=time.monotonic(), what="delivered", **told))


def _arguments(number: int) -> dict[str, Any]:
    return {"intent": f"call-{number}", "seconds": _WORK_S}


def _judge(
    campaign: Campaign,
    processes: Processes,
    lines: list[tuple[int, Line]],
    ledger: list[Any],
    tasks: int,
) -> None:
    broken, figures = campaign.broken, campaign.figures
    created = {one.task_id: one.intent for one in ledger if one.method == "tools/call" and one.task_id}
    ran = Counter(one.intent for one in ledger if one.method == "tools/call")
    broken += [f"{intent} was called {times} times" for intent, times in ran.items() if times > 1]
    # Answers: one is told to count, and that one is sent.
    counts: defaultdict[str | None, list[str]] = defaultdict(list)
    for life, line in lines:
        if line.what == "given":
            counts[line.intent].append(line.text)
        elif line.what == "shown again":
            broken.append(f"{line.question} was shown again to life {life}")
        elif line.what == "error":
            broken.append(line.text)
    sent: defaultdict[str, set[str]] = defaultdict(set)
    for one in ledger:
        for answer in one.answers.values():
            sent[created[one.task_id]].add(answer["content"]["name"])
    for intent, answers in counts.items():
        if len(answers) != 1 or sent[str(intent)] != {*answers}:
            broken.append(f"{intent}: {answers} were told to count, and {sent[str(intent)]} were sent")
    broken += [
        f"{intent} was sent {answers}, which nobody gave"
        for intent, answers in sent.items()
        if intent not in counts
    ]
    # Results: each is delivered, and again only if the first who had it was killed.
    delivered: defaultdict[str | None, list[tuple[int, Line]]] = defaultdict(list)
    for life, line in lines:
        if line.what == "delivered":
            delivered[line.intent].append((life, line))
    broken += [f"{intent} was never delivered" for intent in {*created.values()} - delivered.keys()]
    for intent, times in delivered.items():
        for (had, _), (_, again) in pairwise(times):
            if processes.killed_at.get(had, math.inf) > again.at:
                broken.append(f"{intent} was delivered again though life {had} lived")
    figures["workers killed"] = len(processes.killed_at)
    figures["tasks"] = tasks
    figures["tasks delivered"] = len(delivered)
    figures["questions answered"] = len(counts)
    figures["delivered again, the first worker killed"] = sum(len(times) - 1 for times in delivered.values())
    figures["longest takeover, s"] = round(max(_takeovers(processes, lines, created), default=0.0), 2)
    if figures["longest takeover, s"] > 2 * LEASE_S:
        broken.append("a takeover took longer than two leases")


def _takeovers(
    processes: Processes,
    lines: list[tuple[int, Line]],
    created: dict[str, str],
) -> Iterator[float]:
    """Seconds from the kill of a worker until another one adopts what it had."""
    delivered = {(life, line.intent) for life, line in lines if line.what == "delivered"}
    for life, had in lines:
        killed_at = processes.killed_at.get(life)
        if had.what != "resumed" or killed_at is None:
            continue
        if (life, created[str(had.task_id)]) in delivered:
            continue  # it may have been acknowledged as well
        later = [line.at for _, line in lines if line.what == "resumed" and line.task_id == had.task_id]
        after = [at for at in later if at > killed_at]
        if after:
            yield min(after) - killed_at
