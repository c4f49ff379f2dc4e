"""Starts tasks, has replicas and their database disturbed, and says what did not hold."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg

from mcp_tasks_client import PostgresJournal, TasksClient
from tests.postgres import PostgresServer, running_postgres
from tests.real_server import first_line

from ..torture.evidence import Line, Request, read_log
from ..torture.run import ROOT, servers
from ..torture.server import POLL_INTERVAL_MS
from .host import LEASE_S, environment

__all__ = ["Campaign", "run"]

LIMIT_S: Final = 240.0
REPLICAS: Final = 4
WORK_S: Final = 0.3
EARLY_S: Final = 0.01
"""By so much a poll may seem to be early, since times are those of arrival."""


@dataclass(slots=True, kw_only=True)
class Campaign:
    """What became of it.

    Attributes:
        broken: What did not hold, in sentences.
        figures: How often what happened, by its name.
    """

    broken: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


class Fleet:
    """The replicas of a campaign, by the number of their life."""

    def __init__(self, url: str, dsn: str, folder: Path) -> None:
        self.url, self.dsn, self.folder = url, dsn, folder
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.disturbed: dict[int, float] = {}
        """Since when a life was killed, or was suspended for the first time."""

        self._lives = 0

    def begin(self) -> int:
        self._lives += 1
        life = self._lives
        command = [sys.executable, "-m", f"{__package__}.host", self.url, self.dsn, str(self._log(life))]
        with (self.folder / f"life-{life}.txt").open("wb") as errors:
            self.running[life] = subprocess.Popen(
                [*command, str(life)],
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
        self.disturbed.setdefault(life, time.monotonic())
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def suspend(self, life: int) -> None:
        self.disturbed.setdefault(life, time.monotonic())
        self.running[life].send_signal(signal.SIGSTOP)

    def resume(self, life: int) -> None:
        self.running[life].send_signal(signal.SIGCONT)

    def lines(self) -> list[tuple[int, Line]]:
        found = [(life, line) for life in range(1, self._lives + 1) for line in read_log(self._log(life))]
        return sorted(found, key=lambda pair: pair[1].at)

    def end(self) -> None:
        for life in list(self.running):
            self.kill(life)

    def _log(self, life: int) -> Path:
        return self.folder / f"life-{life}.jsonl"


def run(folder: Path, seed: int, *, tasks: int, disturbances: int) -> Campaign:
    """Disturb four replicas and their database again and again, while calls are made.

    Args:
        folder: For logs.
        seed: Decides about what happens, and when.
        tasks: How many calls are made in all, as the disturbances go on.
        disturbances: How many there are.
    """
    chance = random.Random(seed)
    happened: Counter[str] = Counter()
    with ExitStack() as stack:
        database = stack.enter_context(running_postgres())
        server = stack.enter_context(servers(seed, folder))
        fleet = Fleet(server.endpoint("fastmcp"), database.dsn, folder)
        stack.callback(fleet.end)
        for life in [fleet.begin() for _ in range(REPLICAS)]:
            fleet.wait_for(life)
        started = 0
        for number in range(disturbances + 1):
            share = tasks * (number + 1) // (disturbances + 1)
            anyio.run(_start, fleet, range(started, share))
            started = share
            if number < disturbances:
                time.sleep(chance.uniform(0.0, 1.0))
                happened[_disturb(fleet, database, chance)] += 1
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and _unfinished(database):
            time.sleep(0.2)
        left = _unfinished(database)
        campaign = Campaign()
        campaign.figures |= {"tasks": tasks, **dict(sorted(happened.items()))}
        campaign.broken += [f"{left} records are unfinished"] if left else []
        _judge(campaign, fleet, server.ledger(), tasks)
        return campaign


async def _start(fleet: Fleet, numbers: range) -> None:
    """Make calls in a process that leaves them: ours."""
    journal = PostgresJournal(fleet.dsn)
    async with TasksClient(fleet.url, journal=journal, environment=environment("start")) as client:
        for number in numbers:
            arguments = {"intent": f"call-{number}", "seconds": WORK_S}
            await client.start_tool("greet", arguments, idempotency_key=f"call-{number}")


def _disturb(fleet: Fleet, database: PostgresServer, chance: random.Random) -> str:
    """Do one thing, and say what."""
    what = chance.choice(["killed", "killed", "suspended", "restarted fast", "restarted at once", "cut"])
    life = chance.choice(sorted(fleet.running))
    match what:
        case "killed":
            fleet.kill(life)
            fleet.begin()
        case "suspended":
            fleet.suspend(life)
            time.sleep(chance.uniform(0.5, 2.5) * LEASE_S)
            fleet.resume(life)
        case "cut":
            with psycopg.connect(database.dsn, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'mcp-tasks-client'"
                )
        case _:
            database.stop("fast" if what == "restarted fast" else "immediate")
            time.sleep(chance.uniform(0.0, 2.0))
            database.start()
    return what


def _unfinished(database: PostgresServer) -> int:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM mcp_tasks_client.records WHERE delivered_at IS NULL"
        ).fetchone()
    assert row is not None
    return int(row[0])


def _judge(campaign: Campaign, fleet: Fleet, ledger: list[Request], tasks: int) -> None:
    broken, figures, lines = campaign.broken, campaign.figures, fleet.lines()
    ran = Counter(one.intent for one in ledger if one.method == "tools/call")
    broken += [f"{intent} was called {times} times" for intent, times in ran.items() if times > 1]
    broken += [f"{tasks - len(ran)} were not called"] if len(ran) != tasks else []

    sent: defaultdict[str | None, set[Any]] = defaultdict(set)
    polls: defaultdict[str | None, list[Request]] = defaultdict(list)
    for one in ledger:
        for answer in one.answers.values():
            sent[one.task_id].add(answer["content"]["name"])
        if one.method == "tasks/get":
            polls[one.task_id].append(one)
    broken += [f"{task_id} was answered {answers}" for task_id, answers in sent.items() if len(answers) > 1]
    shortest = POLL_INTERVAL_MS / 1000 - EARLY_S
    early = 0
    for task_id, looks in polls.items():
        for before, after in pairwise(looks):
            # Who was suspended may send one poll more before it knows that others have taken over.
            late = {before.life, after.life} & fleet.disturbed.keys()
            if before.well_answered and not late and after.at - before.at < shortest:
                early += 1
                broken.append(
                    f"{task_id} was polled after {after.at - before.at:.3f} s by {before.life}, {after.life}"
                )

    # A question is before somebody again only if whoever had it before was killed or suspended.
    for what in ("asked", "delivered"):
        had: dict[str | None, int] = {}
        for life, line in lines:
            if line.what == what:
                if (
                    line.intent in had
                    and had[line.intent] not in fleet.disturbed
                    and life not in fleet.disturbed
                ):
                    broken.append(f"{line.intent} was {what} again, by life {life} after {had[line.intent]}")
                had.setdefault(line.intent, life)
        figures[f"{what}, calls"] = len(had)
        figures[what] = sum(line.what == what for _, line in lines)
    delivered = {line.intent for _, line in lines if line.what == "delivered"}
    broken += [f"{intent} was never delivered" for intent in ran.keys() - delivered]
    shares = Counter(life for life, line in lines if line.what == "delivered")
    figures |= {f"delivered by life {life}": count for life, count in sorted(shares.items())}
    figures["polled early"] = early
