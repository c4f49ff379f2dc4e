"""Whether the event loops that something has run in have closed."""

from __future__ import annotations

import asyncio
import gc

import trio

from mcp_tasks_client.aio.loops import Loops


async def note(loops: Loops) -> bool:
    loops.note_running()
    loops.note_running()  # once more is the same
    return loops.have_closed()


def test_what_has_run_in_no_loop_has_lost_none() -> None:
    assert not Loops().have_closed()


def test_a_loop_that_has_closed_is_noticed_and_one_that_stands_still_is_not() -> None:
    loops, loop = Loops(), asyncio.new_event_loop()
    assert not loop.run_until_complete(note(loops))
    assert not loops.have_closed()
    loop.close()
    assert loops.have_closed()
    del loop
    gc.collect()
    assert loops.have_closed()


def test_one_loop_that_is_open_is_enough() -> None:
    loops, first, second = Loops(), asyncio.new_event_loop(), asyncio.new_event_loop()
    for loop in (first, second):
        loop.run_until_complete(note(loops))
    first.close()
    assert not loops.have_closed()
    second.close()
    assert loops.have_closed()
    asyncio.run(note(loops))
    assert loops.have_closed()


def test_of_trio_nothing_is_noticed_since_it_ends_its_tasks_itself() -> None:
    loops = Loops()
    trio.run(note, loops)
    assert not loops.have_closed()
