"""The server's questions of one call: at most one per key, each moving one way only.

``open → answered → sending → acknowledged``; a failed ``tasks/update`` takes ``sending`` back to
``answered``, a refused one to ``rejected``. Whatever the stage, the answer never changes.
"""

from __future__ import annotations

from collections.abc import Callable
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


def asks(questions: Questions) -> tuple[Ask, ...]:
    """The actions that put every open question to the host."""
    return tuple(Ask(q.key, q.request or {}) for q in questions if q.stage == "open")


def answered(questions: Questions, key: str, answer: JSONObject) -> Questions:
    """The first answer counts; a second one for the same key changes nothing."""
    return tuple(
        replace(q, stage="answered", answer=answer) if q.key == key and q.stage == "open" else q
        for q in questions
    )


def answers(questions: Questions) -> dict[str, JSONObject]:
    """What is ready to be sent, by key."""
    return {q.key: q.answer or {} for q in questions if q.stage == "answered"}


def some(questions: Questions, stage: str) -> bool:
    """Whether any question is at this stage."""
    return any(q.stage == stage for q in questions)


def unsent(questions: Questions, *stages: str) -> Questions:
    """Take the questions at these stages back to ``answered``."""
    return tuple(back(q) if q.stage in stages else q for q in questions)


def restaged(
    questions: Questions, keys: tuple[str, ...], change: Callable[[Question], Question]
) -> Questions:
    """Change the questions that are being sent, and only those."""
    return tuple(change(q) if q.key in keys and q.stage == "sending" else q for q in questions)


def back(question: Question) -> Question:
    """To be sent again, as it was."""
    return replace(question, stage="answered", refusal="")


def closed(question: Question) -> Question:
    """Acknowledged; the private parts are dropped."""
    return replace(question, stage="acknowledged", request=None, answer=None)


def rejected(refusal: str) -> Callable[[Question], Question]:
    """A change to ``rejected``, with the server's words."""
    return lambda question: replace(question, stage="rejected", refusal=refusal)
