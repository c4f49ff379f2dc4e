"""Starts tasks, has replicas and their database disturbed, and says what did not hold."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, Literal, TypeAlias

import anyio
import psycopg

from mcp_tasks_client import PostgresJournal, TasksClient
from tests.postgres import PostgresServer, running_postgres

from ..lives import LIMIT_S, Lives, takeovers
from ..outcome import Campaign
from ..torture.evidence import POLL_INTERVAL_MS, Line, Request
from ..torture.run import servers
from .host import LEASE_S, environment

__all__ = ["run"]

REPLICAS: Final = 4
WORK_S: Final = 0.3
AT_ONCE: Final = 50
"""How many calls are made before they are left, since who makes them polls them until then."""

EARLY_S: Final = 0.01
"""By so much a poll may seem to be early, since times are those of arrival."""

CUT_OFF_S: Final = 0.05
"""By so much more, if another process sent the one before and cut it off to stop: a busy server may read it
only then."""

NOTED_S: Final = 1.5
"""Within so many seconds an answer, or a delivery, is in the journal, unless that is away."""

AWAY_S: Final = 4.0
"""Within so many seconds after it has come back, the journal is in use again."""

BACK_S: Final = 1.5
"""For so long a process that was suspended may go on before it knows that others have taken over."""

LARGEST_SHARE: Final = 0.2
"""By so much of the mean a replica's share may differ from it."""

What: TypeAlias = Literal["killed", "stopped", "suspended", "restarted fast", "restarted at once", "cut"]

EACH_ROUND: Final[tuple[What, ...]] = (
    *(["killed"] * 8),
    *(["stopped"] * 4),
    *(["suspended"] * 5),
    *("restarted fast", "restarted at once", "cut"),
)
"""What is done, in an order by chance, and then again."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """Something that was done to a life: when, and when it went on, if it did."""

    life: int
    what: What
    at: float
    until: float


class Fleet(Lives):
    """The replicas of a campaign, and what was done to them."""

    def __init__(self, url: str, dsn: str, folder: Path) -> None:
        super().__init__(folder)
        self.url, self.dsn = url, dsn
        self.interruptions: list[Interruption] = []
        self.outages: list[tuple[float, float]] = []
        """From when to when the database was away, or cut off."""

        self.suspended: dict[int, tuple[float, threading.Timer]] = {}
        """Since when a life is suspended, and what will wake it."""

        self._lock = threading.Lock()

    def replica(self) -> int:
        life, log = self.next_life()
        return self.begin(["-m", f"{__package__}.host", self.url, self.dsn, log, life])

    def kill(self, life: int) -> None:
        with self._lock:
            if life in self.suspended:
                self._interrupted("suspended", life, self.suspended.pop(life)[0])
        at = time.monotonic()
        super().kill(life)
        self._interrupted("killed", life, at)  # it may write lines until it has ended

    def stop(self, life: int) -> None:
        """Tell a replica to stop, and wait until it has handed over."""
        at = time.monotonic()
        self.running[life].send_signal(signal.SIGTERM)
        self.wait_for_end(life)
        self._interrupted("stopped", life, at)

    def suspend(self, life: int, seconds: float) -> None:
        process, at = self.running[life], time.monotonic()

        def go_on() -> None:
            with self._lock:
                if self.suspended.pop(life, None) is not None:  # else it was killed meanwhile
                    self._interrupted("suspended", life, at)
                    process.send_signal(signal.SIGCONT)

        timer = threading.Timer(seconds, go_on)
        self.suspended[life] = at, timer
        process.send_signal(signal.SIGSTOP)
        timer.start()

    def wait_for_suspended(self) -> None:
        for _, timer in list(self.suspended.values()):
            timer.join()

    def _interrupted(self, what: What, life: int, since: float) -> None:
        self.interruptions.append(Interruption(life, what, since, time.monotonic()))

    def noted_by(self, at: float) -> float:
        """By when something is in the journal that happened then."""
        until = at + NOTED_S
        for began, ended in self.outages:
            if began <= until and at <= ended + AWAY_S:
                until = max(until, ended + AWAY_S)
        return until

    def interrupted(self, life: int, since: float, until: float, *whats: What) -> bool:
        """Whether something was done to a life in a time."""
        return any(
            one.life == life and one.what in whats and since <= one.until and one.at <= until
            for one in self.interruptions
        )

    def just_back(self, life: int | None, at: float) -> bool:
        """Whether a life had just been woken, so that it could not know yet what others had done."""
        return any(
            one.life == life and one.what == "suspended" and one.at <= at <= one.until + BACK_S
            for one in self.interruptions
        )


def run(folder: Path, seed: int, *, tasks: int, disturbances: int, calm: int) -> Campaign:
    """Disturb four replicas and their database again and again, while calls are made.

    Args:
        folder: For logs.
        seed: Decides about what happens, and when.
        tasks: How many calls are made in all, as the disturbances go on.
        disturbances: How many there are.
        calm: How many calls are made in the end, for four new replicas that nobody disturbs, to see how they
            are shared.
    """
    chance, happened = random.Random(seed), Counter[str]()
    began = time.monotonic()
    with ExitStack() as stack:
        database = stack.enter_context(running_postgres())
        server = stack.enter_context(servers(seed, folder))
        fleet = Fleet(server.endpoint("fastmcp"), database.dsn, folder)
        stack.callback(fleet.end)
        starter = stack.enter_context(ThreadPoolExecutor(1))
        for life in [fleet.replica() for _ in range(REPLICAS)]:
            fleet.wait_for(life)
        started, plan = 0, list[What]()
        for number in range(disturbances + 1):
            share = tasks * (number + 1) // (disturbances + 1)
            starting = starter.submit(anyio.run, _start, fleet, range(started, share))
            started = share
            if number < disturbances:
                plan = plan or chance.sample(EACH_ROUND, len(EACH_ROUND))
                time.sleep(chance.uniform(0.0, 1.0))
                happened[_disturb(fleet, database, plan.pop(), chance)] += 1
            starting.result()
        fleet.wait_for_suspended()
        finished = fleet.wait_for_deliveries(tasks)
        calm_since = time.monotonic()
        if finished and calm:
            for life in list(fleet.running):
                fleet.stop(life)
            for number in range(tasks, tasks + calm, AT_ONCE):
                anyio.run(_start, fleet, range(number, min(number + AT_ONCE, tasks + calm)))
            for life in [fleet.replica() for _ in range(REPLICAS)]:
                fleet.wait_for(life)
            fleet.wait_for_deliveries(tasks + calm)
        # Whoever was killed between a delivery and its commit has left it to others.
        deadline = time.monotonic() + 3 * LEASE_S
        while (left := _unfinished(database)) and time.monotonic() < deadline:
            time.sleep(0.2)
        campaign = Campaign()
        campaign.figures |= {
            "tasks while replicas and database were disturbed": tasks,
            "tasks after it, undisturbed": calm,
            **{_NAMES[what]: happened[what] for what in _NAMES},
        }
        ledger = server.ledger()
        _save(fleet, ledger)
        _judge(campaign, fleet, ledger, tasks + calm, left)
        if calm:
            _judge_shares(campaign, fleet, calm_since)
        campaign.figures["seconds in all"] = round(time.monotonic() - began)
        return campaign


_NAMES: Final[dict[What, str]] = {
    "killed": "replicas killed (SIGKILL)",
    "stopped": "replicas told to stop (SIGTERM)",
    "suspended": "replicas suspended (SIGSTOP), for 0.5 to 2.5 leases",
    "restarted fast": "restarts of the database, fast",
    "restarted at once": "restarts of the database, immediate",
    "cut": "times that all connections were cut",
}


async def _start(fleet: Fleet, numbers: range) -> None:
    """Make calls in a process that leaves them: ours."""
    async with TasksClient(
        fleet.url,
        journal=PostgresJournal(fleet.dsn),
        elicitation="later",
        environment=environment("start"),
    ) as client:
        for number in numbers:
            arguments = {"intent": f"call-{number}", "seconds": WORK_S}
            await client.start_tool("greet", arguments, idempotency_key=f"call-{number}")


def _disturb(fleet: Fleet, database: PostgresServer, what: What, chance: random.Random) -> What:
    """Do one thing, and say what."""
    awake = sorted(fleet.running.keys() - fleet.suspended.keys())
    if what == "suspended" and len(awake) <= REPLICAS // 2:
        what = "killed"  # somebody has to work
    match what:
        case "killed":
            fleet.kill(chance.choice(sorted(fleet.running)))
            fleet.replica()
        case "stopped":
            fleet.stop(chance.choice(awake))
            fleet.replica()
        case "suspended":
            fleet.suspend(chance.choice(awake), chance.uniform(0.5, 2.5) * LEASE_S)
        case "cut":
            at = time.monotonic()
            with psycopg.connect(database.dsn, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'mcp-tasks-client'"
                )
            fleet.outages.append((at, time.monotonic()))
        case _:
            at = time.monotonic()
            database.stop("fast" if what == "restarted fast" else "immediate")
            time.sleep(chance.uniform(0.0, 2.0))
            database.start()
            fleet.outages.append((at, time.monotonic()))
    return what


def _unfinished(database: PostgresServer) -> int:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM mcp_tasks_client.records WHERE delivered_at IS NULL"
        ).fetchone()
    assert row is not None
    return int(row[0])


def _save(fleet: Fleet, ledger: list[Request]) -> None:
    """Write down what the logs of the replicas do not tell."""
    told = {
        "interruptions": list(map(asdict, fleet.interruptions)),
        "outages": fleet.outages,
        "requests": list(map(asdict, ledger)),
    }
    (fleet.folder / "evidence.json").write_text(json.dumps(told, indent=1))


def _judge(campaign: Campaign, fleet: Fleet, ledger: list[Request], tasks: int, left: int) -> None:
    lines = fleet.lines()
    calls = "tools called twice, or never"
    answers = "questions with two answers"
    polled = "polls before their time"
    undone = "tasks that nobody finished"
    campaign.expect_none(calls, answers, polled, undone)

    ran = Counter(one.intent for one in ledger if one.method == "tools/call")
    for number in range(tasks):
        if (times := ran[f"call-{number}"]) != 1:
            campaign.breach(calls, f"call-{number} was called {times} times")
    sent: defaultdict[str | None, set[Any]] = defaultdict(set)
    polls: defaultdict[str | None, list[Request]] = defaultdict(list)
    for one in ledger:
        for answer in one.answers.values():
            sent[one.task_id].add(answer["content"]["name"])
        if one.method == "tasks/get":
            polls[one.task_id].append(one)
    for task_id, given in sent.items():
        if len(given) > 1:
            campaign.breach(answers, f"{task_id} was answered {given}")

    for task_id, looks in polls.items():
        for before, after in pairwise(looks):
            after_s = after.at - before.at
            is_known = not (fleet.just_back(before.life, before.at) or fleet.just_back(after.life, after.at))
            early_s = EARLY_S if before.life == after.life else EARLY_S + CUT_OFF_S
            if before.well_answered and is_known and after_s < POLL_INTERVAL_MS / 1000 - early_s:
                campaign.breach(
                    polled, f"{task_id} was polled after {after_s:.3f} s by {before.life}, {after.life}"
                )
    delivered = {line.intent for _, line in lines if line.what == "delivered"}
    for intent in ran.keys() - delivered:
        campaign.breach(undone, f"{intent} was never delivered")
    if left:
        campaign.breach(undone, f"{left} records are unfinished")
    campaign.figures["tasks finished"] = len(delivered)
    campaign.figures["polls"] = sum(map(len, polls.values()))
    _judge_again(campaign, fleet, lines)
    _judge_takeovers(campaign, fleet, lines)


def _judge_again(campaign: Campaign, fleet: Fleet, lines: list[tuple[int, Line]]) -> None:
    """A question, or an outcome, comes again only if whoever had it was interrupted before it was noted."""
    asked_twice = "questions asked again, and nobody was interrupted"
    delivered_twice = "outcomes delivered again, and nobody was interrupted"
    campaign.expect_none(asked_twice, delivered_twice)
    answered_at = {(life, line.question): line.at for life, line in lines if line.what == "answered"}
    for what, name in (("asked", asked_twice), ("delivered", delivered_twice)):
        had: dict[str | None, tuple[int, float, float]] = {}
        again = 0
        for life, line in lines:
            if line.what != what:
                continue
            if line.intent in had:
                again += 1
                before, since, noted_by = had[line.intent]
                # Closing writes what was delivered, so that a replica that is told to stop is no reason.
                reasons: list[What] = ["killed", "suspended"] + ["stopped"] * (what == "asked")
                if not (
                    fleet.interrupted(before, since, min(noted_by, line.at), *reasons)
                    or fleet.just_back(life, line.at)
                    or fleet.just_back(before, since)
                ):
                    campaign.breach(name, f"{line.intent} was {what} again, by life {life} after {before}")
            done_at = (
                answered_at.get((life, line.question), line.at + LIMIT_S) if what == "asked" else line.at
            )
            had[line.intent] = life, line.at, fleet.noted_by(done_at)
        campaign.figures[f"{what} again, since a replica was interrupted before it was noted"] = again - int(
            campaign.figures[name]
        )


def _judge_takeovers(campaign: Campaign, fleet: Fleet, lines: list[tuple[int, Line]]) -> None:
    """A call of a killed replica is with another within two leases, and one more for each outage."""
    late = "takeovers from the dead later than within two leases"
    campaign.expect_none(late)
    undisturbed = list[float]()
    for at, taken_at in takeovers(fleet.killed_at, lines):
        outages = [(began, ended) for began, ended in fleet.outages if began <= taken_at and at <= ended]
        allowed_s = 2 * LEASE_S + sum(ended - began + LEASE_S for began, ended in outages)
        if not outages:
            undisturbed.append(taken_at - at)
        if taken_at - at > allowed_s:
            campaign.breach(late, f"a takeover took {taken_at - at:.1f} s of {allowed_s:.1f} s")
    campaign.figures["calls taken over from the dead without an outage meanwhile"] = len(undisturbed)
    if undisturbed:
        campaign.figures["of these, median in leases"] = round(median(undisturbed) / LEASE_S, 2)
        campaign.figures["of these, longest in leases"] = round(max(undisturbed) / LEASE_S, 2)


def _judge_shares(campaign: Campaign, fleet: Fleet, since: float) -> None:
    """While there is more to do than they take at once, and nobody is disturbed, all take up as much.

    That is from when the last of them has adopted its first call until the last call is adopted.
    """
    unfair = "shares that differ by more than 20 %"
    campaign.expect_none(unfair)
    adopted = [(life, line.at) for life, line in fleet.lines() if line.what == "resumed" and line.at >= since]
    first: dict[int, float] = {}
    for life, at in adopted:
        first.setdefault(life, at)
    if len(first) < REPLICAS:
        campaign.breach(unfair, f"only {len(first)} of {REPLICAS} took anything up")
        return
    shares = Counter(life for life, at in adopted if at >= max(first.values()))
    mean = fmean(shares.values())
    for number, life in enumerate(sorted(shares), 1):
        campaign.figures[f"share of replica {number} of 4, undisturbed"] = shares[life]
        if abs(shares[life] / mean - 1) > LARGEST_SHARE:
            campaign.breach(unfair, f"life {life} had {shares[life]}, and {mean:.0f} is the mean")
