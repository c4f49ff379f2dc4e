"""The options that all ways in share, as one value. The constructors document them."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace

from ..engine.engine import Engine, OnAbandon
from ..engine.environment import Environment
from ..engine.tool_result import OutputSchema
from ..journal.base import Journal
from ..journal.sqlite.journal import choose_journal
from ..policy import PollPolicy
from ..questions.callbacks import Callbacks, ElicitationCallback, RootsCallback, SamplingCallback

__all__ = ["SharedOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """The options of a way in. ``None`` means that the host has not given one."""

    journal: Journal | str | os.PathLike[str] | None = None
    endpoint: str | None = None
    principal: str | None = None
    application: str | None = None
    elicitation: ElicitationCallback | None = None
    sampling: SamplingCallback | None = None
    roots: RootsCallback | None = None
    poll: PollPolicy | None = None
    on_abandon: OnAbandon | None = None
    output_schema: OutputSchema | None = None
    environment: Environment | None = None

    def or_else(self, others: SharedOptions) -> SharedOptions:
        """These options, with the others in place of those that were not given."""
        names = [one.name for one in fields(self) if getattr(self, one.name) is None]
        return replace(self, **{name: getattr(others, name) for name in names})

    @property
    def callbacks(self) -> Callbacks:
        """The callbacks that questions of servers are put to."""
        return Callbacks(elicitation=self.elicitation, sampling=self.sampling, roots=self.roots)

    def make_engine(self) -> Engine:
        """The engine of a way in.

        Raises:
            TypeError: ``journal`` is neither a journal nor a path.
            ValueError: ``on_abandon`` or ``output_schema`` is no word for it, or ``application`` is no name.
        """
        return Engine(
            journal=choose_journal(self.journal),
            policy=self.poll or PollPolicy(),
            on_abandon="detach" if self.on_abandon is None else self.on_abandon,
            output_schema="raise" if self.output_schema is None else self.output_schema,
            application=self.application,
            environment=self.environment,
        )
