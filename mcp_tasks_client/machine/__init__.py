"""The life of one call: ``advance(state, event, policy)`` gives the next state and the actions. Pure."""

from __future__ import annotations

from .before_task import MAX_ROUNDS, ImpossibleEventError, Step
from .task import advance

__all__ = ["MAX_ROUNDS", "ImpossibleEventError", "Step", "advance"]
