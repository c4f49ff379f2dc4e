"""A guarded journal is shielded from scopes, and fails with a typed error only."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import create_autospec

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from mcp_tasks_client import Instruction, Journal, MemoryJournal, SqliteJournal
from mcp_tasks_client.aio.uncut import run_to_its_end
from mcp_tasks_client.errors import DrivenElsewhereError, JournalError
from mcp_tasks_client.journal.guarded import GuardedJournal
from mcp_tasks_client.journal.sqlite import thread as sqlite_thread
from mcp_tasks_client.journal.sqlite.file import connect
from mcp_tasks_client.testing.samples import SCOPE, lease, record
from tests.journal.files import Spy, commits_held, stored

pytestmark = pytest.mark.anyio

CALLS: Final[dict[str, tuple[Any, ...]]] = {
    "open": (),
    "open_existing": (),
    "aclose": (),
    "aclose_soon": (),
    "claim": (record(),),
    "save": (record(),),
    "deliver": (1.0, {"r": 1}),
    "remove": (record(),),
    "by_id": ("r",),
    "by_task_id": (SCOPE, "t"),
    "records": (SCOPE,),
    "asking": (SCOPE,),
    "prune": (1.0, 2.0, {"b/1"}),
    "renew": (lease("a"),),
    "keep_renewing": (None,),
    "owners": ("b/1",),
    "take": ("r", "a/1", {"b/1"}),
    "take_pending": (SCOPE, "a/1", {"b/1"}),
    "principals": ("https://server.example/", {"b/1"}),
    "release": ("a/1", "a"),
    "instruct": ("r", Instruction("cancel", "{}", 1.0)),
    "instructions": ("r",),
    "durations": (SCOPE, "report"),
    "follow": ("r",),
    "listen": (print,),
    "watch": (print,),
}
WISH: Final = Instruction("cancel", "", 1.0)
COROUTINES: Final = [name for name in CALLS if inspect.iscoroutinefunction(getattr(Journal, name))]


def stubbed(behave: Callable[..., Any]) -> tuple[GuardedJournal, Any]:
    """A guarded journal, each of whose methods behaves the same."""
    stub = create_autospec(
        MemoryJournal, instance=True, retention_s=7.0, keep_delivered_s=3.0, identity="the file"
    )
    for name in CALLS:
        getattr(stub, name).side_effect = behave
    return GuardedJournal(stub), stub


async def call(journal: GuardedJournal, name: str) -> Any:
    result = getattr(journal, name)(*CALLS[name])
    return await result if inspect.isawaitable(result) else result


def test_every_method_of_a_journal_is_called_here() -> None:
    methods = {name for name, _ in inspect.getmembers(Journal, inspect.isfunction) if name[0] != "_"}
    assert methods == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_is_passed_on_and_its_result_back(name: str) -> None:
    journal, stub = stubbed(lambda *args, **kwargs: name)
    assert await call(journal, name) == name
    assert getattr(stub, name).call_args.args == CALLS[name]
    assert (journal.retention_s, journal.keep_delivered_s, journal.identity) == (7.0, 3.0, "the file")


async def test_what_is_given_by_name_is_passed_on() -> None:
    journal, stub = stubbed(lambda *args, **kwargs: None)
    await journal.save(record(), known=True, heeded=WISH, keep_until=2.0)
    await journal.records(SCOPE, pending=True, delivered_since=1.0)
    journal.deliver(1.0, {"r": 1}, keep_until=2.0)
    assert stub.save.call_args.kwargs == {"known": True, "heeded": WISH, "keep_until": 2.0}
    assert stub.records.call_args.kwargs == {"pending": True, "delivered_since": 1.0}
    assert stub.deliver.call_args.kwargs == {"keep_until": 2.0}


@pytest.mark.parametrize("name", CALLS)
async def test_an_error_of_a_foreign_class_becomes_a_journal_error(name: str) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("the disk is gone")

    journal, _ = stubbed(fail)
    with pytest.raises(
        JournalError, match=r"OSError: the disk is gone.*mend it, then resume the task"
    ) as caught:
        await call(journal, name)
    assert isinstance(caught.value.__cause__, OSError)


async def test_an_error_whose_text_cannot_be_read_becomes_a_journal_error() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def fail(*args: object, **kwargs: object) -> None:
        raise MuteError

    journal, _ = stubbed(fail)
    with pytest.raises(JournalError, match="MuteError: its text cannot be read") as caught:
        await journal.open()
    assert isinstance(caught.value.__cause__, MuteError)


@pytest.mark.parametrize("name", ["save", "deliver"])
async def test_an_error_of_ours_stays_as_it_is(name: str) -> None:
    error = DrivenElsewhereError("taken")

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    journal, _ = stubbed(fail)
    with pytest.raises(DrivenElsewhereError) as caught:
        await call(journal, name)
    assert caught.value is error


@pytest.mark.parametrize("name", COROUTINES)
async def test_being_cancelled_from_inside_becomes_a_journal_error(name: str) -> None:
    async def fail(*args: object, **kwargs: object) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await checkpoint()
            except anyio.get_cancelled_exc_class() as error:
                cancelled = error
        raise cancelled

    journal, _ = stubbed(fail)
    with pytest.raises(JournalError, match=r"cancelled from inside.*resume the task"):
        await call(journal, name)
    await checkpoint()  # nothing of it is left for the caller


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("whole", [False, True])
async def test_a_native_cancel_during_a_save_does_not_undo_the_commit(
    path: Path, spy: Spy, whole: bool
) -> None:
    """And waits for it, where the save is part of a step that runs to its end."""
    journal = GuardedJournal(SqliteJournal(path))
    given = record(record_id="r")
    async with asyncio.timeout(20), journal:
        with commits_held(spy) as held:
            saving = asyncio.ensure_future(
                run_to_its_end(journal.save, given) if whole else journal.save(given)
            )
            await to_thread.run_sync(held.wait, 10)
            saving.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert saving.done() is not whole
            spy.release.set()
            with pytest.raises(asyncio.CancelledError):
                await saving
        if whole:
            assert stored(path) == ["r"]
    assert stored(path) == ["r"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_native_cancel_during_the_opening_leaves_nothing_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = threading.Event()

    def connect_late(*args: Any) -> Any:
        assert cancelled.wait(10)
        return connect(*args)

    monkeypatch.setattr(sqlite_thread, "connect", connect_late)
    journal = GuardedJournal(SqliteJournal(path))
    async with asyncio.timeout(20):
        opening = asyncio.ensure_future(journal.open())
        await asyncio.sleep(0)
        opening.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        with pytest.raises(JournalError, match="is not open"):
            await journal.records(SCOPE)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_a_guarded_journal_is_a_journal() -> None:
    given = record(idempotency_key="order-42")
    async with GuardedJournal(MemoryJournal()) as journal:
        assert await journal.claim(given) == given
        assert await journal.records(SCOPE) == [given]
