"""Rounds: a few processes at a time on one journal, killed at random instants, others in their place.

Meanwhile three more answer from outside what those ask: two at the same moment, and one late.
"""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urljoin

import httpx

from tests._forked import Program
from tests.real_server import first_line

from ..answering import answering
from .evidence import Evidence, Life, Request, What, read_log
from .host import Part, stopped_key
from .host import Through as OneWay
from .stops import CALL_SENT, STOPS

__all__ = ["SCENARIOS", "Scenario", "Servers", "Through", "rounds_of", "servers", "torture"]

START_LIMIT_S: Final = 60.0
LAST_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 10.0
KILLS_A_ROUND: Final = 25
STOPPED: Final = "fastmcp"
"""The server whose hosts are killed at each named stop."""

KEYS_A_LIFE: Final = 4
SHARED_LIVES: Final = 4
"""A key is called by so many processes, one after the other or at the same time."""

Through: TypeAlias = Literal["client", "http", "transport", "extension", "each"]
"""How hosts make their calls: by a ``TasksClient``, by an ``mcp.Client`` over ``tasks_http_client`` or over a
``TasksTransport``, by one with an extension for each call, or by each of these in turn."""

SHARE: Final = 0.75
"""Of the questions that are answered from outside, should nobody be faster. The others wait for a host, which
may be the last one: it leaves none to others.
"""

PATIENCES_S: Final = ((0.0, 0.5), (0.0, 0.5), (0.5, 1.5))
"""Seconds that a question waits, at least and at most, for each of those who answer from outside."""

LEAVES: Final = (0.0, 0.5, 0.5, 1.0)
"""Shares of its questions that a process leaves to those, one of these."""

MOMENTS_S: Final[dict[What, float]] = {
    "resuming": 0.01,
    "begun": 0.02,
    "asked": 0.01,
    "answered": 0.004,
    "put off": 0.4,
    "delivered": 0.004,
}
"""Seconds after a line of the log, in which a kill falls just before or just after a commit."""

OF_THE_SDK: Final = tuple(
    f"_meta io.modelcontextprotocol/tasks of {method} was missing"
    for method in ("server/discover", "tools/list")
)
"""Complaints about the requests of an ``mcp.Client`` itself, which declares no tasks and makes none."""

MOMENT_LIMIT_S: Final = 1.5
"""Seconds that such a line is waited for; then the process is killed all the same."""


@dataclass(frozen=True, slots=True)
class Instant:
    """When a process is killed: so many seconds after it said something first."""

    after: What | Literal["ready"]
    seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """A server, and how many processes share a journal."""

    endpoint: str
    processes: int

    def __str__(self) -> str:
        return f"{self.endpoint} with {self.processes} processes"


SCENARIOS: Final = (
    Scenario("scripted", 3),
    Scenario("fastmcp", 3),
    Scenario("flaky", 3),
    Scenario("scripted", 2),
    Scenario("fastmcp", 2),
    Scenario("flaky", 2),
)


def rounds_of(kills: int) -> list[tuple[Scenario, int]]:
    """Scenarios, each with a share of the kills; at least one for each kind of server."""
    rounds = max(min(kills, 3), math.ceil(kills / KILLS_A_ROUND))
    return [
        (SCENARIOS[number % len(SCENARIOS)], kills // rounds + (number < kills % rounds))
        for number in range(rounds)
    ]


# ── the servers ──


@dataclass(frozen=True, slots=True)
class Servers:
    """All endpoints, in a process of their own."""

    url: str

    def endpoint(self, name: str) -> str:
        """The URL of one of them."""
        return urljoin(self.url, f"/{name}")

    def ledger(self, since: int = 0) -> list[Request]:
        """What has arrived so far, oldest first, but for the first ``since`` requests."""
        return [Request(**one) for one in self._get(f"/ledger?since={since}")]

    def complaints(self) -> list[str]:
        """What the scripted ones hold against their clients."""
        return list(self._get("/complaints"))

    def _get(self, path: str) -> Any:
        reply = httpx.get(urljoin(self.url, path), trust_env=False, verify=False, timeout=START_LIMIT_S)
        reply.raise_for_status()
        return reply.json()


@contextmanager
def servers(seed: int, folder: Path) -> Iterator[Servers]:
    """The servers, for the length of the block.

    Raises:
        RuntimeError: They did not start.
    """
    errors = folder / "servers.txt"
    with (
        errors.open("wb") as stderr,
        Program("-m", f"{__package__}.server", seed, stderr=stderr) as process,
    ):
        try:
            line = first_line(process.stdout, START_LIMIT_S)
            if not line:
                raise RuntimeError(f"the servers did not start:\n{errors.read_text(errors='replace')}")
            yield Servers(json.loads(line)["url"])
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


# ── the rounds ──


@dataclass(slots=True)
class Round:
    """One round.

    Args:
        scenario: Its server, and its processes.
        kills: How many are killed.
        number: Tells its calls from those of other rounds.
        chance: Decides about instants, and about who does what.
        url: The server's.
        folder: For the journal and the logs.
        through: How its hosts make their calls.
        stops: The named stop of each process that is killed. Without any, chance decides about instants.
    """

    scenario: Scenario
    kills: int
    number: int
    chance: random.Random
    url: str
    folder: Path
    through: Through
    stops: Sequence[str] = ()
    lives: list[Life] = field(default_factory=list, init=False)
    others: list[Life] = field(default_factory=list, init=False)
    begun: int = field(default=0, init=False)
    lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def play(self) -> None:
        """Kill as often as is wanted, and let a last process bring everything home."""
        places = min(self.scenario.processes, self.kills)
        with ExitStack() as others:
            for number, patience_s in enumerate(() if self.stops else PATIENCES_S, 1):
                others.enter_context(self._answering(1000 * self.number + 900 + number, patience_s))
            with ThreadPoolExecutor(places) as threads:
                for place in [threads.submit(self._keep_killing) for _ in range(places)]:
                    place.result()
            self._live(self._part(last=True), None)
        self.lives.sort(key=lambda life: life.number)

    @contextmanager
    def _answering(self, life: int, patience_s: tuple[float, float]) -> Iterator[None]:
        log, errors = self.folder / f"answers-{life}.jsonl", self.folder / f"answers-{life}.txt"
        command = answering(self._journal, log, life, share=SHARE, patience_s=patience_s)
        with (
            errors.open("wb") as stderr,
            Program(*command, stderr=stderr) as process,
        ):
            try:
                first_line(process.stdout, START_LIMIT_S)
                yield
            finally:
                ended = process.poll()
                process.kill()
                process.wait(STOP_LIMIT_S)
        said = errors.read_text(errors="replace")[-2000:]
        trouble = "" if ended is None else f"ended with code {ended}: {said}"
        self.others.append(Life(number=life, lines=read_log(log), trouble=trouble))

    @property
    def _journal(self) -> Path:
        return self.folder / "journal.sqlite3"

    def _keep_killing(self) -> None:
        while True:
            with self.lock:
                if self.begun == self.kills:
                    return
                part, instant = self._part(), self._instant()
            self._live(part, instant)

    def _part(self, *, last: bool = False) -> Part:
        self.begun += 1
        return Part(
            url=self.url,
            journal=str(self._journal),
            log=str(self.folder / f"life-{self.begun}.jsonl"),
            life=self._life(self.begun),
            seed=self.chance.getrandbits(32),
            keys=self._keys(last),
            last=last,
            leaves=0.0 if last or self.stops else self.chance.choice(LEAVES),
            backend="trio" if self.begun % 3 == 0 else "asyncio",
            through=self._next_way(),
            stop=None if last or not self.stops else self.stops[self.begun - 1],
        )

    def _life(self, begun: int) -> int:
        return 1000 * self.number + begun

    def _keys(self, last: bool) -> list[str]:
        """What the process that was begun now calls under a key."""
        if self.stops:
            return [stopped_key(self._life(self.stops.index(CALL_SENT) + 1))]
        newest = KEYS_A_LIFE * self.begun
        oldest = 0 if last else max(0, newest - KEYS_A_LIFE * SHARED_LIVES)
        return [f"key-{self.number}-{number}" for number in range(oldest, newest)]

    def _next_way(self) -> OneWay:
        if self.through != "each":
            return self.through
        # A reply that is cut ends the whole client of the SDK, and with it a call or a host over it.
        ways: list[OneWay] = ["http", "client"]
        if self.scenario.endpoint != "flaky":
            ways += ["transport", "extension"]
        return ways[self.begun % len(ways)]

    def _instant(self) -> Instant:
        if self.stops:
            return Instant("reached", 0.0)
        chance = self.chance.random()
        if chance < 0.6:
            return Instant("ready", self.chance.uniform(0.005, 0.4))
        if chance < 0.8:
            return Instant("ready", self.chance.uniform(0.4, 1.2))
        # Left to chance alone, the short moments that matter most would hardly ever be met.
        after = self.chance.choice(list(MOMENTS_S))
        return Instant(after, self.chance.uniform(0.0, MOMENTS_S[after]))

    def _live(self, part: Part, instant: Instant | None) -> None:
        """One process, from its start to its death by our hand; without an instant, to its end."""
        errors = Path(part.log).with_suffix(".txt")
        with (
            errors.open("wb") as stderr,
            Program("-m", f"{__package__}.host", part.dump(), stderr=stderr, text=True) as process,
        ):
            killed_at = killed(process, instant)
        trouble = ""
        if process.returncode != (0 if instant is None else -signal.SIGKILL):
            said = errors.read_text(errors="replace")[-2000:]
            trouble = f"ended with code {process.returncode}: {said}"
        lines = read_log(Path(part.log))
        self.lives.append(Life(number=part.life, lines=lines, killed_at=killed_at, trouble=trouble))


def killed(process: Program, instant: Instant | None) -> float | None:
    """Kill a process at an instant. Returns when; ``None`` if it ended before that.

    Without an instant it is left to end by itself, if it does.
    """
    words: SimpleQueue[str] = SimpleQueue()
    reader = Thread(target=put_words, args=[process, words])
    reader.start()
    try:
        if instant is not None:
            wait_for(words, "ready", START_LIMIT_S)
        if instant is not None and instant.after != "ready":
            wait_for(words, instant.after, START_LIMIT_S if instant.after == "reached" else MOMENT_LIMIT_S)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LAST_LIMIT_S if instant is None else instant.seconds)
            return None
        return time.monotonic() if instant is not None else None
    finally:
        process.kill()  # does nothing to one that has been waited for
        process.wait(STOP_LIMIT_S)
        reader.join(STOP_LIMIT_S)


def put_words(process: Program, words: SimpleQueue[str]) -> None:
    """Read what a process says, to its end."""
    for line in process.stdout:
        words.put(line.strip())
    words.put("")


def wait_for(words: SimpleQueue[str], wanted: str, limit_s: float) -> None:
    """Return when the word comes, or the end, or when it has not come for so long."""
    deadline = time.monotonic() + limit_s
    with suppress(Empty):
        while words.get(timeout=max(0.0, deadline - time.monotonic())) not in (wanted, ""):
            pass


def torture(kills: int, seed: int, folder: Path, through: Through = "client") -> Iterator[Evidence]:
    """Play all rounds, one after the other, and give the evidence of each.

    In the first one a process is killed at each named stop.

    Args:
        kills: How many processes are killed at instants of chance.
        seed: Decides everything but what the operating system does.
        folder: For journals and logs.
        through: How those hosts make their calls.
    """
    with servers(seed, folder) as all_of_them:
        at_stops = Scenario(STOPPED, 3)
        yield _round(0, at_stops, len(STOPS), seed, folder, all_of_them, "client", stops=[*STOPS])
        for number, (scenario, share) in enumerate(rounds_of(kills), 1):
            if through in ("transport", "extension") and scenario.endpoint == "flaky":
                # A reply that is cut ends the whole client of the SDK, and its host with it.
                scenario = replace(scenario, endpoint="scripted")
            yield _round(number, scenario, share, seed, folder, all_of_them, through)


def _round(
    number: int,
    scenario: Scenario,
    kills: int,
    seed: int,
    folder: Path,
    all_of_them: Servers,
    through: Through,
    stops: Sequence[str] = (),
) -> Evidence:
    own = folder / f"round-{number}"
    own.mkdir()
    seen, complained = len(all_of_them.ledger()), len(all_of_them.complaints())
    this = Round(
        scenario=scenario,
        kills=kills,
        number=number,
        chance=random.Random(f"{seed}/{number}"),
        url=all_of_them.endpoint(scenario.endpoint),
        folder=own,
        through=through,
        stops=stops,
    )
    this.play()
    complaints = all_of_them.complaints()[complained:]
    if through != "client":
        complaints = [one for one in complaints if not one.startswith(OF_THE_SDK)]
    evidence = Evidence(
        scenario=f"round {number}, {scenario}, through {through}{', at stops' if stops else ''}",
        lives=this.lives,
        others=this.others,
        requests=all_of_them.ledger(since=seen),
        complaints=complaints,
    )
    evidence.save(own / "evidence.json")
    return evidence
