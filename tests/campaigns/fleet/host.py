"""A replica: it adopts calls, sees them through, and answers what they ask, or leaves that to others.

``python -m tests.campaigns.fleet.host PLACE URL JOURNAL LOG``, where ``PLACE`` is a :class:`Place` in JSON,
and ``JOURNAL`` a database (``host=…``) or a file. It prints ``ready``, writes down what it gets to know, and
hands over what it has at SIGTERM, upon which it ends. At SIGUSR1 it suspends itself inside its next look for
calls in a database, if that comes within the time of a lease.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
from mcp_types import ElicitResult

from mcp_tasks_client import Environment, Journal, PostgresJournal, TasksClient
from mcp_tasks_client.engine.process import Process

from ..adopting import adopt_all
from ..torture.evidence import LIFE_HEADER, SENT_HEADER, Log
from .dropped_in import Through, opened

__all__ = ["Place", "http_client"]

THINKS_S: Final = 0.3
"""How long an answer takes, so that some who think are interrupted."""

THINKS_LONG: Final = 0.4
"""The share of questions that somebody thinks over for up to two leases."""

MOMENTS: Final = ("asking", "owners", "before taking", "after taking")
"""The parts of a look after which a replica may suspend itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A replica's place in the fleet.

    Attributes:
        life: Its number.
        lease_s: The length of its lease.
        limit: How many calls it sees to at once; ``None`` is all.
        host: The name of its host, and the number of its network card; empty if it is on this machine.
        boot: Tells this start of the host from all others.
        outage_s: For how long its works wait for the database.
        through: By which way in it sees to them; a client by URL, or one over a host's own client.
    """

    life: int
    lease_s: float
    limit: int | None
    host: str = ""
    boot: str = ""
    outage_s: float = 0.0
    through: Through = "client"

    def as_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @property
    def environment(self) -> Environment:
        """What a client gets to know of it."""
        if not self.host:
            return Environment(lease_s=self.lease_s)
        process = replace(Process.current(), host=self.host, boot=self.boot)
        return Environment(process=process, lease_s=self.lease_s)


class Interruptible(PostgresJournal):
    """A journal whose process is suspended inside a look for calls, once it was told so."""

    def __init__(self, dsn: str, place: Place, log: Log) -> None:
        super().__init__(dsn, outage_s=place.outage_s)
        self._log = log
        self._place = place
        self._chance = random.Random(place.life)
        self._moment = ""
        self._until = 0.0

    def suspend_in_next_look(self) -> None:
        """Suspend the process at a moment of its next look."""
        self._moment, self._until = self._chance.choice(MOMENTS), time.monotonic() + self._place.lease_s

    async def asking(self, *args: Any) -> Any:
        found = await super().asking(*args)
        self._suspend("asking")
        return found

    async def owners(self, *names: str) -> Any:
        found = await super().owners(*names)
        if not names:
            self._suspend("owners")
        return found

    async def take_pending(self, *args: Any, **options: Any) -> Any:
        self._suspend("before taking")
        taken = await super().take_pending(*args, **options)
        if taken:
            self._log.write("looked")
        self._suspend("after taking")
        return taken

    def _suspend(self, moment: str) -> None:
        if moment == self._moment:
            self._moment = ""
            if time.monotonic() < self._until:
                self._log.write("stopping", text=moment)
                os.kill(os.getpid(), signal.SIGSTOP)


def http_client() -> httpx.AsyncClient:
    """An HTTP client that says in each request when it sent it."""

    async def stamp(request: httpx.Request) -> None:
        request.headers[SENT_HEADER] = str(time.monotonic())

    # No TLS: reading the system's certificates takes longer than some of these processes live.
    return httpx.AsyncClient(verify=False, trust_env=False, event_hooks={"request": [stamp]})


@asynccontextmanager
async def client_of(
    place: Place, url: str, journal: Journal | str, elicitation: Any
) -> AsyncIterator[TasksClient]:
    """The client of a replica."""
    options: dict[str, Any] = {"journal": journal, "environment": place.environment}
    if place.through == "client":
        http, headers = http_client(), {LIFE_HEADER: str(place.life)}
        client = TasksClient(url, http_client=http, headers=headers, elicitation=elicitation, **options)
        async with http, client:
            yield client
    else:
        assert isinstance(journal, str)
        async with (
            opened(place.through, url, journal, place.life, place.environment) as session,
            TasksClient(session, endpoint=url, elicitation="later", **options) as client,
        ):
            yield client


async def main(place: Place, url: str, journal: str, path: str) -> None:
    log = Log(Path(path))

    async def answer(context: Any, params: Any) -> ElicitResult:
        question = str(params.message)
        about = {"intent": question.partition(":")[0], "question": question}
        log.write("asked", **about)
        try:
            await anyio.sleep(_thinks_s(question, place.lease_s))
        except anyio.get_cancelled_exc_class():
            log.write("withdrawn", **about)
            raise
        text = f"life {place.life} to {question}"
        log.write("answered", text=text, **about)
        return ElicitResult(action="accept", content={"name": text})

    database = Interruptible(journal, place, log) if place.host else None
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGUSR1) as told:
        async with (
            client_of(place, url, database or journal, answer if place.host else "later") as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(adopt_all, client, log, place.limit)
            async for number in told:
                if number == signal.SIGTERM or database is None:
                    tasks.cancel_scope.cancel()
                    break
                database.suspend_in_next_look()


def _thinks_s(question: str, lease_s: float) -> float:
    chance = random.Random(question)
    return chance.uniform(THINKS_S, 2 * lease_s) if chance.random() < THINKS_LONG else THINKS_S


if __name__ == "__main__":
    given, *rest = sys.argv[1:]
    anyio.run(main, Place(**json.loads(given)), *rest)
