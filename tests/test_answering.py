"""An answer over a connection that does not tell what becomes of it: it has arrived when the task goes on."""

from __future__ import annotations

from typing import Any, Final

import pytest

from mcp_tasks_client.sessions.asked import Asked, Said
from mcp_tasks_client.wire import JSONObject

from ._requirements import requirement

NAME: Final[JSONObject] = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object"}}
METHOD: Final = "elicitation/create"


def said_to(*requests: tuple[str, int]) -> tuple[Asked[str], str, Said[str]]:
    """What was asked so, with its key and an answer that was said to it."""
    asked = Asked[str]()
    for peer, request_id in requests:
        asked.add(peer, request_id, METHOD, NAME)
    ((key, _),) = asked.questions(()).items()
    return asked, key, asked.says(key, asked.waiting(key, ()))


@requirement("law:3")
def test_what_was_said_is_kept_under_its_key_until_it_has_arrived() -> None:
    asked, key, said = said_to(("here", 0))
    assert (asked.open, asked.was_answered(key), asked.said(key)) == (False, True, said)
    assert asked.request_ids(()) == {key: [0]}, "for another process, which may have to say it"
    asked.looked(asked.all_said(), waits=False)
    assert (said.arrived, asked.said(key), asked.request_ids(())) == (True, None, {})
    assert asked.was_answered(key)


@requirement("law:3")
def test_what_is_asked_after_an_answer_was_said_is_another_question() -> None:
    asked, key, _ = said_to(("here", 0))
    asked.add("here", 1, METHOD, NAME)
    (other,) = set(asked.questions(())) - {key}
    assert asked.waiting(other, ()) == [("here", 1)]
    assert asked.waiting(key, ()) == [], "nobody else gets this answer"


@requirement("law:3")
def test_who_asks_again_under_an_id_has_the_answer_to_what_had_it_before() -> None:
    asked, key, said = said_to(("here", 0))
    asked.add("there", 0, METHOD, NAME)
    assert said.arrived is None, "somebody else's ID"
    asked.add("here", 0, METHOD, NAME)
    assert said.arrived
    assert key not in asked.questions(())
    assert len(asked.questions(())) == 1


def test_a_snapshot_says_something_only_of_what_was_said_before_it_was_asked_for() -> None:
    asked, _, said = said_to(("here", 0))
    asked.looked((), waits=False)
    assert said.arrived is None
    asked.looked([said], waits=True)
    assert (said.arrived, said.looks) == (None, 1)
    asked.add("here", 1, "roots/list", {})
    asked.looked([said], waits=True)
    assert said.looks == 1, "it may wait for the other one"
    asked.withdraw("here", 1)
    for waits in (False, False, True):
        asked.looked([said], waits=waits)
        assert (said.arrived, said.looks) == (True, 1), "what comes late changes nothing"


@requirement("law:3")
@pytest.mark.parametrize("how", ["withdrawn", "lost", "not said after all"])
def test_a_question_whose_answer_was_of_no_use_keeps_its_key(how: str) -> None:
    asked, key, said = said_to(("here", 0), ("there", 0))
    match how:
        case "withdrawn":
            asked.withdraw("here", 0)
        case "lost":
            asked.lose("here")
        case _:
            asked.unsaid(said)
    assert said.arrived is False
    assert not asked.was_answered(key)
    left = [("there", 0)] if how != "not said after all" else [("here", 0), ("there", 0)]
    assert asked.waiting(key, ()) == left
    asked.unsaid(said)  # that it could not be said comes too late
    asked.add("here", 7, METHOD, NAME)
    assert asked.waiting(key, ()) == [*left, ("here", 7)]


@pytest.mark.parametrize("over", [True, False])
def test_nobody_waits_for_what_becomes_of_an_answer_once_the_task_is_of_no_interest(over: bool) -> None:
    asked, _, said = said_to(("here", 0))
    asked.close(over=over)
    assert said.arrived is over
    asked.add("here", 1, METHOD, NAME)
    late = asked.says("late", [("here", 1)])
    assert late.arrived is over
    assert late.news.is_set()


@requirement("law:3")
def test_two_questions_of_one_text_are_still_two_in_the_next_process() -> None:
    asked, first, _ = said_to(("here", 0))
    asked.add("here", 1, METHOD, NAME)
    questions, request_ids = asked.questions(()), asked.request_ids(())
    (second,) = set(questions) - {first}
    after: Asked[str] = Asked()
    for key, ids in request_ids.items():
        after.restore("there", key, ids, questions[key])
    assert after.waiting(first, ()) == [("there", 0)]
    assert after.waiting(second, ()) == [("there", 1)]
    after.add("there", 2, METHOD, NAME)
    assert after.waiting(first, ()) == [("there", 0), ("there", 2)], "it may be the first one, asked again"


def test_what_another_process_was_asked_is_not_put_in_the_place_of_what_is_asked_now() -> None:
    asked: Asked[str] = Asked()
    asked.add("here", 0, "roots/list", {})
    before: Any = asked.questions(())
    asked.restore("here", "of-before", [0], NAME)
    assert asked.questions(()) == before
