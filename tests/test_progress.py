"""How far tasks are: which token is whose, and how often is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks_client.old.sessions.progress import Progress
from mcp_tasks_client.old.wire import JSONObject

from ._requirements import requirement


def said(token: object, step: int = 1) -> JSONObject:
    return {"progressToken": token, "progress": step, "total": 3, "_meta": {}}


@pytest.fixture
def progress() -> Progress:
    return Progress()


def test_a_call_gets_a_token_unless_its_caller_has_given_one(progress: Progress) -> None:
    params: JSONObject = {"_meta": {"a/b": 1}}
    token = progress.announce(params, "s", ours=True)
    assert params == {"_meta": {"a/b": 1, "progressToken": token}}
    assert isinstance(token, str)
    given: JSONObject = {"_meta": {"progressToken": 0}}
    assert progress.announce(given, "s", ours=True) == 0
    assert given == {"_meta": {"progressToken": 0}}


@pytest.mark.parametrize("meta", [None, {}, {"progressToken": True}, {"progressToken": [1]}])
def test_where_no_token_may_be_added_there_is_none_but_the_callers(progress: Progress, meta: Any) -> None:
    params = {} if meta is None else {"_meta": meta}
    before = dict(params)
    assert progress.announce(params, "s", ours=False) is None
    assert params == before


@requirement("2025:progress")
def test_what_is_said_before_the_task_is_known_is_said_of_it(progress: Progress) -> None:
    token = progress.announce({}, "s", ours=True)
    assert progress.take(said(token), 0.0, "s") is None
    assert progress.of("task") == {}
    progress.expect(token, "task", "s")
    assert progress.of("task") == {"progress": 1, "total": 3}
    assert progress.token_of("task") == token


@requirement("2025:progress")
def test_another_process_goes_on_with_the_token(progress: Progress) -> None:
    progress.expect("of-the-dead", "task", "s")
    progress.expect("another", "task", "s")
    assert progress.take(said("another"), 0.0, "s") is None
    assert progress.take(said("of-the-dead"), 0.0, "s") == "task"


@requirement("2025:progress")
def test_a_task_keeps_its_token_and_what_was_said_in_a_session_begun_anew(progress: Progress) -> None:
    token = progress.announce({}, "s1", ours=True)
    progress.expect(token, "task", "s1")
    progress.take(said(token), 0.0, "s1")
    progress.expect(token, "task", "s2")
    assert progress.of("task") == {"progress": 1, "total": 3}
    assert progress.take(said(token, 2), 1.0, "s2") == "task"
    assert progress.of("task") == {"progress": 2, "total": 3}
    progress.forget("task")
    assert progress.take(said(token, 3), 2.0, "s1") is None
    assert progress.take(said(token, 3), 2.0, "s2") is None
    progress.expect(token, "another", "s1")
    assert progress.of("another") == {}, "nothing is left behind"
    assert progress.take(said(token, 4), 3.0, "s1") == "another"


def test_nobody_is_told_more_often_than_ten_times_a_second_and_the_last_counts(progress: Progress) -> None:
    progress.expect(1, "task", "s")
    due = [progress.take(said(1, step), 0.03 * step, "s") for step in range(8)]
    assert due == ["task", None, None, None, "task", None, None, None]
    assert progress.of("task")["progress"] == 7


@pytest.mark.parametrize("token", [None, "unheard-of", [1], {}])
def test_what_belongs_to_no_task_is_passed_over(progress: Progress, token: object) -> None:
    assert progress.take(said(token), 0.0, "s") is None


def test_nothing_is_kept_of_what_is_over(progress: Progress) -> None:
    token = progress.announce({}, "s", ours=True)
    progress.drop(token, "s")
    assert progress.take(said(token), 0.0, "s") is None
    kept = progress.announce({}, "s", ours=True)
    progress.expect(kept, "task", "s")
    progress.drop(kept, "s")
    assert progress.take(said(kept), 0.0, "s") == "task"
    progress.forget("task")
    progress.forget("task")
    progress.drop(None, "s")
    assert progress.of("task") == {}
    assert [len(one) for one in vars(progress).values()] == [0, 0, 0, 0]


def test_two_sessions_may_have_one_token_and_one_session_has_it_once(progress: Progress) -> None:
    progress.expect(2, "one", "s")
    progress.expect(2, "other", "of-another-run")
    progress.expect(2, "third", "s")
    assert progress.take(said(2), 0.0, "of-another-run") == "other"
    assert progress.of("one") == {}
    assert progress.token_of("third") is None
    for task_id in ("third", "one", "other"):
        progress.forget(task_id)
    assert not vars(progress)["_said"]
