"""What happens by itself while a client is open: old outcomes are forgotten, nothing else is."""

from __future__ import annotations

import pytest

from mcp_tasks_client import MemoryJournal, TasksClient
from mcp_tasks_client.testing import (
    ManualClock,
    ScriptedServer,
    complete,
    scripted_client,
    text_result,
    work,
)

from ._requirements import requirement

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0


def world() -> tuple[ManualClock, ScriptedServer, MemoryJournal]:
    clock = ManualClock()
    server = ScriptedServer(clock=clock)
    server.tool("quick", [work(2), complete(text_result("done"))])
    return clock, server, MemoryJournal()


async def keys(client: TasksClient) -> list[str | None]:
    return [record.idempotency_key for record in await client.records()]


async def finished(clock: ManualClock, client: TasksClient, key: str) -> None:
    handle = await client.start_tool("quick", idempotency_key=key)
    await clock.advance(10)
    await handle.result()
    await clock.advance(0)


@requirement("law:2")
async def test_an_outcome_is_kept_for_a_week_after_it_was_delivered_and_then_forgotten() -> None:
    clock, server, journal = world()
    async with scripted_client(server.session(), journal=journal) as client:
        await finished(clock, client, "first")
    await clock.advance(6.9 * DAY_S)
    async with scripted_client(server.session(), journal=journal) as client:
        await clock.advance(0)
        assert await keys(client) == ["first"]
    await clock.advance(0.2 * DAY_S)
    async with scripted_client(server.session(), journal=journal) as client:
        await clock.advance(0)
        assert await keys(client) == []


async def test_a_client_that_stays_open_forgets_what_grows_old_meanwhile() -> None:
    clock, server, journal = world()
    client = scripted_client(server.session(), journal=journal)
    client._engine.lease_s = 900.0
    async with client:
        await finished(clock, client, "first")
        await clock.advance(6.9 * DAY_S)
        assert await keys(client) == ["first"]
        await clock.advance(0.2 * DAY_S)
        assert await keys(client) == []


@requirement("law:2")
async def test_what_was_never_delivered_is_never_forgotten() -> None:
    clock, server, journal = world()
    async with scripted_client(server.session(), journal=journal) as client:
        await client.start_tool("quick", idempotency_key="unread")
        await clock.advance(10)
    await clock.advance(1000 * DAY_S)
    async with scripted_client(server.session(), journal=journal) as client:
        assert await client.prune(0) == 0
        (handle,) = await client.resume()
        assert (await handle.result()).content[0].text == "done"  # type: ignore[union-attr]  # it is text
        await clock.advance(1)
        assert await client.prune(0) == 1
        assert await keys(client) == []


async def test_how_long_outcomes_are_kept_is_the_journals_own_to_say() -> None:
    clock, server, _ = world()
    journal = MemoryJournal(retention_s=60.0)
    async with scripted_client(server.session(), journal=journal) as client:
        await finished(clock, client, "first")
        assert await client.prune() == 0
        await clock.advance(61)
        assert await client.prune() == 1


async def test_an_age_cannot_be_negative() -> None:
    _, server, journal = world()
    async with scripted_client(server.session(), journal=journal) as client:
        with pytest.raises(ValueError, match="cannot be negative"):
            await client.prune(-1)
