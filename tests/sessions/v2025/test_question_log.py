"""Which request asks what: the log of one task's questions."""

from __future__ import annotations

from typing import Any, Final

import pytest

from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.sessions.v2025.question_log import QuestionLog
from mcp_tasks_client.sessions.v2025.session_data import SentAnswer, SessionData
from mcp_tasks_client.sessions.v2025.shapes import strip_volatile

CAT: Final[JSONObject] = {"method": "elicitation/create", "params": {"message": "Cat?"}}
DOG: Final[JSONObject] = {"method": "elicitation/create", "params": {"message": "Dog?"}}


def restarted(log: QuestionLog) -> QuestionLog:
    """The log as another process finds it in the journal."""
    return QuestionLog(SessionData.read(log.dump(SessionData()).write()))


def key_of(log: QuestionLog) -> str:
    (key,) = log.show()
    return key


def answer(log: QuestionLog, key: str, *, acknowledged: bool = True) -> None:
    assert log.begin_answer(key) is not None
    log.finish_answer(key, {"action": "accept"}, acknowledged=acknowledged)


def test_questions_are_shown_one_at_a_time_and_the_oldest_first() -> None:
    log = QuestionLog(SessionData())
    assert [log.hear(1, CAT), log.hear(2, DOG)] == ["new", "new"]
    assert list(log.show().values()) == [CAT]
    answer(log, key_of(log))
    assert list(log.show().values()) == [DOG]


def test_a_question_keeps_its_key_when_it_is_sent_again_and_over_a_restart() -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    key = key_of(log)
    assert log.hear(1, CAT) == "known"
    log = restarted(log)
    assert key_of(log) == key
    assert log.hear("another", CAT) == "new", "the server asks the next process, under another ID"
    assert key_of(log) == key
    assert log.begin_answer(key) == "another"
    assert len(log) == 1


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("second_id", [1, 2], ids=["the ID is reused", "another ID"])
def test_the_same_words_after_an_answer_are_another_question(restart: bool, second_id: int) -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    first = key_of(log)
    answer(log, first)
    log = restarted(log) if restart else log
    assert log.was_answered(first)
    assert log.hear(second_id, CAT) == "new"
    assert key_of(log) != first
    assert not log.was_answered(key_of(log))


def test_the_same_words_that_come_while_an_answer_is_sent_are_another_question() -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    first = key_of(log)
    log.begin_answer(first)
    assert log.hear(1, CAT) == "new"
    log.finish_answer(first, {}, acknowledged=True)
    assert len(log) == 1
    assert key_of(log) != first


@pytest.mark.parametrize("second_id", [1, 2], ids=["the same ID", "another ID"])
@pytest.mark.parametrize("restart", [False, True])
def test_after_an_answer_that_may_have_arrived_another_id_is_another_question(
    second_id: int, restart: bool
) -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    log = restarted(log) if restart else log
    first = key_of(log)
    log.begin_answer(first)
    log.abort_answer(first)
    log.lose_stream()
    log.hear(second_id, CAT)
    assert len(log) == second_id, "else the second one would have the answer of the first"
    assert log.begin_answer(first) == 1


def test_two_questions_of_one_text_that_are_open_together_are_two() -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    log.hear("1", CAT)
    assert len(log) == 2
    keys = [key_of(log)]
    answer(log, keys[0])
    keys.append(key_of(log))
    answer(log, keys[1])
    log.hear(3, CAT)
    assert len({*keys, key_of(log)}) == 3


def test_of_two_alike_the_key_of_the_one_that_was_answered_is_not_used_again() -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    log.hear(2, CAT)
    first = key_of(log)
    log.withdraw(1)
    second = key_of(log)
    answer(log, second)
    log.hear(3, CAT)
    assert key_of(log) not in (first, second)


def test_an_id_that_the_server_reuses_drops_the_question_that_had_it() -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    log.hear(1, DOG)
    assert list(log.show().values()) == [DOG]
    assert len(log) == 1


def test_a_question_that_the_server_cancels_is_dropped_and_has_its_key_when_it_is_asked_again() -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    key = key_of(log)
    assert log.withdraw(1)
    assert not log.withdraw(1)
    assert not log.show()
    assert log.begin_answer(key) is None
    log.hear(2, CAT)
    assert key_of(log) == key, "so that a person who was asked already is not asked twice"


def test_a_question_of_a_session_that_is_gone_waits_until_it_is_asked_again() -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    key = key_of(log)
    log.lose_session()
    assert not log.show()
    assert log.begin_answer(key) is None
    log.hear(9, CAT)
    assert log.begin_answer(key) == 9


def test_an_answer_that_did_not_arrive_can_be_sent_again() -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    key = key_of(log)
    log.begin_answer(key)
    log.abort_answer(key)
    assert not log.was_answered(key)
    assert log.begin_answer(key) == 1


def test_an_answer_without_effect_is_sent_once_more_at_the_second_snapshot() -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    answer(log, key_of(log))
    assert log.look(waiting=True) is None
    again = log.look(waiting=True)
    assert again is not None
    assert (again.request_id, again.content) == (1, {"action": "accept"})
    assert log.look(waiting=True) is again, "it did not get through"
    log.finish_once_more(again)
    assert log.look(waiting=True) is None, "once"


@pytest.mark.parametrize("acknowledged", [False, True])
def test_another_process_sends_an_answer_once_more_if_nobody_told_that_it_arrived(acknowledged: bool) -> None:
    log = QuestionLog(SessionData())
    log.hear(0, CAT)
    answer(log, key_of(log), acknowledged=acknowledged)
    assert log.look(waiting=True) is None
    log = restarted(log)
    again = [log.look(waiting=True) for _ in range(2)]
    if acknowledged:
        assert again == [None, None]
    else:
        assert again == [None, SentAnswer(0, {"action": "accept"})]
        assert again[1] is not None
        log.finish_once_more(again[1])
        assert restarted(log).look(waiting=True) is None, "once"


def test_an_answer_that_was_used_is_journaled_no_more() -> None:
    log = QuestionLog(SessionData())
    log.hear(0, CAT)
    answer(log, key_of(log), acknowledged=False)
    assert log.dump(SessionData()).sent is not None
    log.look(waiting=False)
    assert log.dump(SessionData()).sent is None


@pytest.mark.parametrize("why", ["it works", "another question is open"])
def test_an_answer_is_not_sent_once_more_if_the_task_may_have_used_it(why: str) -> None:
    log = QuestionLog(SessionData())
    log.hear(1, CAT)
    answer(log, key_of(log))
    if why == "it works":
        assert log.look(waiting=False) is None
    else:
        log.hear(2, DOG)
    assert [log.look(waiting=True) for _ in range(3)] == [None] * 3


def test_a_task_that_asks_too_much_is_refused() -> None:
    log = QuestionLog(SessionData())
    many = [log.hear(n, {"method": "elicitation/create", "params": {"message": str(n)}}) for n in range(101)]
    assert many == ["new"] * 100 + ["too many"]
    large: dict[str, Any] = {"method": "sampling/createMessage", "params": {"text": "x" * 2_000_000}}
    assert QuestionLog(SessionData()).hear(1, large) == "too many"


def test_metadata_that_differs_each_time_makes_no_other_question() -> None:
    meta = {"io.modelcontextprotocol/related-task": {"taskId": "t"}, "progressToken": 7}
    assert strip_volatile("m", {"a": 1, "_meta": meta}) == {"method": "m", "params": {"a": 1}}
    kept = {"method": "m", "params": {"a": 1, "_meta": {"own": 1}}}
    assert strip_volatile("m", {"a": 1, "_meta": {**meta, "own": 1}}) == kept
