"""The server's questions (``inputRequests``) of one call: one lifecycle per key. The first answer stays.

::

    open ──► asking ──► answered ──► sending ──► acknowledged ──► answered    the server still asks
                           ▲            ├──► unsent      the next tick sends the same answer again
                           └────────────┴──► rejected ──► disputed ──► answered, then open

``asking`` goes back to ``open`` when a prompt is withdrawn. Some servers acknowledge an
answer and lose it: while snapshots go on to list its key, it is sent again after 5, 10, 20… of them, or after
as many as take five seconds. A server ignores answers that it does not wait for.

``rejected`` becomes ``disputed`` with the next poll, whose snapshot tells whether the server still waits for
the answer. The first such snapshot sends it again: one of several servers may not have heard of the task. The
second one, after a second refusal, opens the question again. Some servers refuse an answer that they have
taken before. So if the reply to any send was lost, the answer stays, and the call parks.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final, TypeAlias

from ..protocol import JSONObject
from ..protocol.text import digest
from .actions import Ask
from .replacing import replace
from .states import AskedQuestion

__all__ = [
    "MAX_OPEN",
    "MAX_QUESTIONS",
    "MAX_REFUSALS",
    "MAX_SIZE",
    "TOLD_AT_MOST",
    "Questions",
    "acknowledge",
    "answer",
    "ask_open",
    "collect_answers",
    "dispute",
    "doubt",
    "find_disputed",
    "find_excess",
    "find_new",
    "find_refused",
    "find_swapped",
    "has_lost",
    "has_undelivered",
    "is_answered",
    "is_reused",
    "mark_rejected",
    "mark_sending",
    "mark_unsent",
    "open_question",
    "open_refused",
    "reopen",
    "take_back",
    "watch_acknowledged",
]

Questions: TypeAlias = tuple[AskedQuestion, ...]

MAX_OPEN: Final = 100
"""Questions of one call that may be without an acknowledged answer at once."""

MAX_QUESTIONS: Final = 1000
"""Questions of one call in all. Each key is remembered, so that no question is asked twice."""

MAX_SIZE: Final = 20_000
"""JSON values in the questions of one snapshot. A string counts once more for every 200 characters."""

MAX_REFUSALS: Final = 3
"""Refused answers to one question after which the host is not asked. An inbox may still answer it."""

TOLD_AT_MOST: Final = 500
"""Characters of an error that are kept. A server's, or one of a host's own session, may be of any length."""

_LISTED_TO_RESEND: Final = 5
_LAG_S: Final = 5.0
"""Seconds for which a server may go on listing a question whose answer it has."""

_MAX_LEVELS: Final = 100
_CHARACTERS: Final = 200


def find_excess(questions: Questions, requests: JSONObject) -> str | None:
    """Why the questions of a snapshot are too many or too large; ``None`` if they are not.

    They are counted before anything is hashed, journaled or put to the host.
    """
    known = {q.key for q in questions}
    fresh = sum(key not in known for key in requests)
    unfinished = sum(q.stage != "acknowledged" for q in questions)
    if unfinished + fresh > MAX_OPEN or len(questions) + fresh > MAX_QUESTIONS:
        return f"the server asks more than {MAX_OPEN} questions at once, or {MAX_QUESTIONS} of one call"
    if _is_too_large(requests):
        return "the server's questions are too large, or nested too deeply"
    return None


def _is_too_large(requests: JSONObject) -> bool:
    room, level = MAX_SIZE, list[Any]([requests])
    for _ in range(_MAX_LEVELS):
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                room -= len(value) // _CHARACTERS
            elif isinstance(value, dict | list):
                room -= len(value)
                if room >= 0:
                    below += [*value, *value.values()] if isinstance(value, dict) else value
            if room < 0:
                return True
        if not below:
            return False
        level = below
    return True


def open_question(key: str, request: Any, now: float, waits_from: float = 0.0) -> AskedQuestion:
    """A question as first seen, at this time."""
    # A request that is no object is kept as one that no host can answer, and says so when asked.
    asked = request if isinstance(request, dict) else {}
    return AskedQuestion(
        key=key,
        digest=digest(_lasting_parts(request)),
        asked_at=now,
        waits_from=waits_from or now,
        request=asked,
    )


def find_new(questions: Questions, requests: JSONObject, now: float, waits_from: float = 0.0) -> Questions:
    """Questions whose keys were never seen before, in the order of ``requests``."""
    known = {q.key for q in questions}
    return tuple(
        open_question(key, request, now, waits_from) for key, request in requests.items() if key not in known
    )


def is_reused(questions: Questions, requests: JSONObject) -> bool:
    """Whether a known key has another request now, in any stage of its question: a violation to report."""
    return any(q.key in requests and _differs(q, requests[q.key]) for q in questions)


def find_swapped(questions: Questions, requests: JSONObject) -> tuple[str, ...]:
    """Keys that have another request now. The answer to the first request does not fit it: the call parks."""
    return tuple(
        q.key
        for q in questions
        if q.stage != "sending" and q.key in requests and _differs(q, requests[q.key])
    )


def _differs(question: AskedQuestion, request: Any) -> bool:
    # Comparing is much cheaper than hashing. But NaN differs from itself, and an old request is not kept.
    return question.request != request and question.digest != digest(_lasting_parts(request))


def _lasting_parts(request: Any) -> Any:
    """A request without the parts that may differ from list to list: metadata, and the mode of a form."""
    params = request.get("params") if isinstance(request, dict) else None
    if not isinstance(params, dict):
        return request
    asked = {name: value for name, value in params.items() if name != "_meta"}
    if asked.get("mode") == "form":
        del asked["mode"]  # as without one
    return {**request, "params": asked}


def ask_open(questions: Questions, outstanding: Collection[str]) -> tuple[Questions, tuple[Ask, ...]]:
    """Mark every open question that the server waits for as ``asking``, and return the actions that ask."""
    asks = [
        Ask(q.key, q.request or {}, q.refusals)
        for q in questions
        if q.stage == "open" and q.key in outstanding and q.refusals < MAX_REFUSALS
    ]
    keys = {ask.key for ask in asks}
    asked = tuple(replace(q, stage="asking") if q.key in keys else q for q in questions)
    return asked, tuple(asks)


def reopen(questions: Questions, *keys: str) -> Questions:
    """Take questions that are before the host back to ``open``: those of ``keys``, or all without any."""
    return tuple(
        replace(q, stage="open") if q.stage == "asking" and (q.key in keys or not keys) else q
        for q in questions
    )


def answer(questions: Questions, key: str, content: JSONObject, now: float, refusals: int = 0) -> Questions:
    """Record the first answer for ``key``. A second one changes nothing, nor one to an earlier asking."""
    return tuple(
        replace(q, stage="answered", answer=content, answered_at=now, earlier="none")
        if q.key == key and q.unanswered and q.refusals == refusals
        else q
        for q in questions
    )


def is_answered(questions: Questions, key: str, refusals: int = 0) -> bool:
    """Whether a question has its answer, sent or not, or an answer to that asking was refused."""
    return any(q.key == key and (not q.unanswered or q.refusals != refusals) for q in questions)


def collect_answers(questions: Questions, outstanding: Collection[str]) -> dict[str, JSONObject]:
    """The answers to send, by key. Empty while an outstanding question is not answered.

    A server need not accept a partial set of answers, and an answer must be to a question that it
    still asks. Answers that it may have go apart from the others, should it refuse them. One that was refused
    with others goes alone, so that no person is asked again for the mistake of another.
    """
    wanted = [q for q in questions if q.key in outstanding]
    if any(q.stage in ("open", "asking", "unsent") for q in wanted):
        return {}
    ready = [q for q in wanted if q.stage == "answered"]
    refused = [q for q in ready if q.earlier == "refused"]
    fresh = [q for q in ready if not q.listed and q not in refused]
    return {q.key: q.answer or {} for q in fresh or refused[:1] or ready}


def mark_sending(questions: Questions, keys: Collection[str]) -> Questions:
    """The answers to ``keys`` are about to be sent."""
    return tuple(replace(q, stage="sending") if q.key in keys else q for q in questions)


def take_back(questions: Questions, *stages: str) -> Questions:
    """Take the questions at these stages back to ``answered``, to be sent again."""
    return tuple(replace(q, stage="answered") if q.stage in stages else q for q in questions)


def doubt(questions: Questions) -> Questions:
    """Doubt the answers that are on their way: their replies are lost, and the server may take them.

    They have to go again. So has one that was refused and may have been taken: the server may relent.
    """
    return tuple(
        replace(q, stage="answered", earlier="unknown")
        if q.stage == "sending" or (q.stage in ("rejected", "disputed") and q.earlier == "unknown")
        else q
        for q in questions
    )


def acknowledge(questions: Questions, keys: Collection[str]) -> Questions:
    """The server has acknowledged the answers to ``keys``. The requests are dropped."""
    return tuple(
        replace(q, stage="acknowledged", request=None) if _is_sent(q, keys) else q for q in questions
    )


def watch_acknowledged(questions: Questions, outstanding: Collection[str], interval_s: float) -> Questions:
    """Count the polls that still list a question whose answer was acknowledged. A lost answer goes again.

    Args:
        questions: All of the call.
        outstanding: Keys of the questions that the latest poll lists.
        interval_s: Seconds between polls.
    """
    patience = max(_LISTED_TO_RESEND, math.ceil(_LAG_S / interval_s) if interval_s else 0)
    return tuple(_watch(question, outstanding, patience) for question in questions)


def has_lost(before: Questions, watched: Questions) -> bool:
    """Whether :func:`watch_acknowledged` has found an answer that goes again."""
    return any(q.stage == "acknowledged" != w.stage for q, w in zip(before, watched, strict=True))


def _watch(question: AskedQuestion, outstanding: Collection[str], patience: int) -> AskedQuestion:
    if question.stage != "acknowledged" or question.answer is None:
        return question
    if question.key not in outstanding:
        return replace(question, listed=0) if question.listed else question
    listed = question.listed + 1
    times, rest = divmod(listed, patience)
    lost = rest == 0 and times.bit_count() == 1  # 1, 2, 4…
    return replace(question, listed=listed, stage="answered" if lost else "acknowledged")


def mark_unsent(questions: Questions, keys: Collection[str], *, untaken: bool) -> Questions:
    """The answers to ``keys`` did not get through. They go again, unchanged, with the next tick."""
    return tuple(
        replace(q, stage="unsent", earlier=q.earlier if untaken else "unknown") if _is_sent(q, keys) else q
        for q in questions
    )


def mark_rejected(questions: Questions, keys: Collection[str], words: str) -> Questions:
    """The server refused the answers to ``keys``, in these words.

    An answer that was acknowledged before counts as acknowledged: the server has it.
    """
    refusal = words[:TOLD_AT_MOST]
    return tuple(
        (replace(q, stage="acknowledged") if q.listed else replace(q, stage="rejected", refusal=refusal))
        if _is_sent(q, keys)
        else q
        for q in questions
    )


def dispute(questions: Questions) -> Questions:
    """A poll is about to tell whether the server still waits for the answers that it refused."""
    return tuple(replace(q, stage="disputed") if q.stage == "rejected" else q for q in questions)


def open_refused(questions: Questions, outstanding: Collection[str]) -> Questions:
    """A poll that was sent after the refusal of an answer lists its question: see the module's head."""
    return tuple(_open_refused(q) if q.stage == "disputed" and q.key in outstanding else q for q in questions)


def _open_refused(question: AskedQuestion) -> AskedQuestion:
    match question.earlier:
        case "none":
            return replace(question, stage="answered", earlier="refused")
        case "refused":
            return replace(question, stage="open", answer=None, refusals=question.refusals + 1)
        case _:
            return question


def find_disputed(questions: Questions, outstanding: Collection[str]) -> Questions:
    """Questions whose answer the server refuses, though it may have it."""
    return tuple(q for q in questions if q.stage == "disputed" and q.key in outstanding)


def find_refused(questions: Questions, outstanding: Collection[str]) -> Questions:
    """Open questions that the host is not asked again, since too many answers were refused."""
    return tuple(q for q in questions if q.unanswered and q.refusals >= MAX_REFUSALS and q.key in outstanding)


def has_undelivered(questions: Questions) -> bool:
    """Whether an answer is on its way, or did not get through."""
    return any(q.stage in ("sending", "unsent") for q in questions)


def _is_sent(question: AskedQuestion, keys: Collection[str]) -> bool:
    return question.stage == "sending" and question.key in keys
