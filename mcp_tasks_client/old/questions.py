"""The server's questions of one call: at most one per key, each moving one way only.

``open → asking → answered → sending → acknowledged``; a prompt that was withdrawn takes ``asking``
back to ``open``, a failed ``tasks/update`` takes ``sending`` to ``unsent`` (the next tick
sends it again), and a refused one to ``rejected``, which is ``disputed`` as soon as the server is
asked whether it still wants to know. Whatever the stage, the first answer stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeAlias

from .events import Ask
from .states import Question
from .wire import JSONObject, digest

Questions: TypeAlias = tuple[Question, ...]


def question(key: str, request: Any) -> Question:
    """A question as first seen."""
    # A request that is no object is kept as one that nobody can answer, and says so when asked.
    return Question(key=key, digest=digest(request), request=request if isinstance(request, dict) else {})


def new_questions(questions: Questions, requests: JSONObject) -> tuple[Questions, dict[str, str]]:
    """Questions never seen before, and reports of keys that now mean something else."""
    known = {q.key: q for q in questions}
    reports = {
        f"key_reused:{digest(key)[:16]}": "an input key was used again for a different request"
        for key, request in requests.items()
        if key in known and known[key].digest != digest(request)
    }
    fresh = tuple(question(key, request) for key, request in requests.items() if key not in known)
    return fresh, reports


def swapped(questions: Questions, requests: JSONObject) -> tuple[str, ...]:
    """Keys behind which something else is asked now, while the answer to the first has not gone out."""
    return tuple(
        q.key
        for q in questions
        if q.stage not in ("sending", "acknowledged")
        and q.key in requests
        and q.digest != digest(requests[q.key])
    )


def asking(questions: Questions, outstanding: Collection[str]) -> tuple[Questions, tuple[Ask, ...]]:
    """Put to the host what is open and still wanted."""
    wanted = {q.key for q in questions if q.stage == "open" and q.key in outstanding}
    asks = tuple(Ask(q.key, q.request or {}) for q in questions if q.key in wanted)
    return _restage(questions, wanted, lambda q: replace(q, stage="asking")), asks


def reopened(questions: Questions, *keys: str) -> Questions:
    """What was before the host is before it no longer: these, or all."""
    return tuple(
        replace(q, stage="open") if q.stage == "asking" and (q.key in keys or not keys) else q
        for q in questions
    )


def answered(questions: Questions, key: str, answer: JSONObject) -> Questions:
    """The first answer counts; a second one for the same key changes nothing."""
    return tuple(
        replace(q, stage="answered", answer=answer) if q.key == key and q.unanswered else q for q in questions
    )


def answers(
    questions: Questions, outstanding: Collection[str], *, singly: bool = False
) -> dict[str, JSONObject]:
    """What is ready to be sent, by key: all that is still wanted, or nothing while some of it is not.

    A server need not accept a partial set of answers, and an answer must be to a question that it
    still asks. Where it takes each by itself (``singly``), it may not wait for all: each goes as it comes.
    """
    wanted = [q for q in questions if q.key in outstanding]
    if not singly and any(q.stage in ("open", "asking", "unsent") for q in wanted):
        return {}
    return {q.key: q.answer or {} for q in wanted if q.stage == "answered"}


def sending(questions: Questions, keys: Collection[str]) -> Questions:
    """These are on their way."""
    return _restage(questions, keys, lambda q: replace(q, stage="sending"))


def unsent(questions: Questions, *stages: str) -> Questions:
    """Take the questions at these stages back to ``answered``."""
    return tuple(replace(q, stage="answered", refusal="") if q.stage in stages else q for q in questions)


def undelivered(questions: Questions) -> bool:
    """Whether an answer is on its way, or did not get through."""
    return any(q.stage in ("sending", "unsent") for q in questions)


def disputed(questions: Questions) -> Questions:
    """The server is about to be asked what it makes of the answers that it rejected."""
    return tuple(replace(q, stage="disputed") if q.stage == "rejected" else q for q in questions)


def sent(questions: Questions, keys: tuple[str, ...], change: Callable[[Question], Question]) -> Questions:
    """Change the questions that are being sent, and only those."""
    return tuple(change(q) if q.key in keys and q.stage == "sending" else q for q in questions)


def back(question: Question) -> Question:
    """Not sent after all; to be sent again, as it was, when the time for it comes."""
    return replace(question, stage="unsent")


def closed(question: Question) -> Question:
    """Acknowledged; the private parts are dropped."""
    return replace(question, stage="acknowledged", request=None, answer=None)


def rejected(refusal: str) -> Callable[[Question], Question]:
    """A change to ``rejected``, with the server's words."""
    return lambda question: replace(question, stage="rejected", refusal=refusal)


def _restage(
    questions: Questions, keys: Collection[str], change: Callable[[Question], Question]
) -> Questions:
    return tuple(change(q) if q.key in keys else q for q in questions)
