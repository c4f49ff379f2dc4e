"""A kind of question is one entry: whoever takes callbacks, reads params or takes answers knows each kind."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest

from mcp_tasks_client import TasksClient, TasksExtension, TasksHttpTransport, TasksTransport
from mcp_tasks_client.questions.callbacks import Callbacks
from mcp_tasks_client.questions.kinds import KINDS, Answer, QuestionParams, can_be_asked, is_for_person

NAMES = [kind.name for kind in KINDS.values()]


@pytest.mark.parametrize("way", [Callbacks, TasksClient, TasksExtension, TasksHttpTransport, TasksTransport])
def test_each_way_in_takes_a_callback_for_each_kind(way: Any) -> None:
    assert [name for name in inspect.signature(way.__init__).parameters if name in NAMES] == NAMES


def test_the_public_types_name_the_classes_of_each_kind() -> None:
    assert {*get_args(Answer)} == {answer for kind in KINDS.values() for answer in kind.answers}
    read = {kind.params_for(params) for kind in KINDS.values() for params in ({}, {"mode": "url"})}
    assert {*get_args(QuestionParams)} == read


@pytest.mark.parametrize("method", KINDS)
def test_a_kind_is_declared_by_the_first_word_of_its_method(method: str) -> None:
    kind = KINDS[method]
    assert method == f"{kind.name}/{method.partition('/')[2]}"
    assert kind.request.model_fields["method"].default == method
    assert can_be_asked({"method": method}, {kind.name: kind.capability})
    assert not can_be_asked({"method": method}, {})


def test_persons_answer_elicitations() -> None:
    assert [method for method in KINDS if is_for_person({"method": method})] == ["elicitation/create"]


@pytest.mark.parametrize("method", [None, 5, ["roots/list"], "tools/call", "elicitation"])
def test_another_method_asks_nobody(method: Any) -> None:
    everything = {name: {} for name in NAMES}
    assert not can_be_asked({"method": method}, everything)
    assert not is_for_person({"method": method})
