"""The record of a new call: whose call it is, which process makes it, and its label for people."""

from __future__ import annotations

import re
import secrets
from functools import cached_property
from typing import Final

from ..machine.record import Origin, Scope, TaskRecord
from ..machine.states import Calling
from .environment import Environment
from .process import Process

__all__ = ["RecordMaker", "check_application", "check_label", "check_record_id"]

_LONGEST_LABEL: Final = 200
"""Characters."""

_RECORD_ID: Final = re.compile(r"[0-9a-f]{32}")


class RecordMaker:
    """Makes the records of the calls that begin at one endpoint.

    An ``application`` of ``None`` is everybody's.
    """

    def __init__(self, scope: Scope, application: str | None, environment: Environment) -> None:
        self.scope = scope
        self.application = application
        self._process = environment.process

    def make(
        self,
        tool: str | None,
        now: float,
        *,
        label: str | None,
        record_id: str | None = None,
        arguments_digest: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskRecord:
        """A record of a call that nothing was sent for yet.

        Args:
            tool: Its name; ``None`` if that is not known.
            now: Wall clock, in seconds since the epoch.
            label: A short text for people.
            record_id: ``None`` draws one.
            arguments_digest: Of the arguments, if they are known.
            idempotency_key: Under which the call can be repeated.

        Raises:
            ValueError: The label is none.
        """
        check_label(label)
        return TaskRecord(
            record_id=record_id or secrets.token_hex(16),
            scope=self.scope,
            tool=tool,
            arguments_digest=arguments_digest,
            idempotency_key=idempotency_key,
            label=label,
            application=self.application,
            origin=self._origin,
            state=Calling(),
            created_at=now,
            updated_at=now,
        )

    @cached_property
    def _origin(self) -> Origin:
        return (self._process or Process.current()).origin


def check_label(label: object) -> None:
    """Refuse a value that is no label.

    Raises:
        ValueError: It is no text, or longer than 200 characters.
    """
    if label is not None and not (isinstance(label, str) and len(label) <= _LONGEST_LABEL):
        what = f"one of {len(label)}" if isinstance(label, str) else repr(label)
        raise ValueError(f"a label is a text of at most {_LONGEST_LABEL} characters, not {what}")


def check_record_id(record_id: object) -> None:
    """Refuse an ID that no record of ours would be given.

    Raises:
        ValueError: It is not 32 hexadecimal digits.
    """
    if not (isinstance(record_id, str) and _RECORD_ID.fullmatch(record_id)):
        raise ValueError(
            f"the ID of a record is 32 digits of 0-9 and a-f, such as uuid4().hex, not {record_id!r}"
        )


def check_application(application: object) -> None:
    """Refuse a value that is no name of an application.

    Raises:
        ValueError: It is no text, or empty.
    """
    if application is not None and not (isinstance(application, str) and application):
        raise ValueError(
            f"an application is named by a text that is not empty, not {application!r}; "
            "leave the name out if its calls are anybody's"
        )
