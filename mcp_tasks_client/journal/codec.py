"""The host's encoding of private values, mostly encryption: applied before they are stored, undone when read.

The columns hold text. An encoded value stands there in base64, behind a mark that no value in clear can begin
with, so that one kind is never taken for the other.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, Protocol, overload

from ..errors import JournalCodecError

__all__ = ["Codec", "check_codec", "decoded", "encoded"]


class Codec(Protocol):
    """Encodes the private values of a journal; see ``codec=`` of the journals.

    Both methods are called in event loops and in threads of ours, also at the same time. They have to be
    quick, and do no I/O. Their errors concern one record only, and become a :class:`JournalCodecError`.
    """

    def encode(self, value: bytes, /) -> bytes:
        """The value to store in place of the given one. It may be longer, and different each time."""

    def decode(self, value: bytes, /) -> bytes:
        """The value that :meth:`encode` was given.

        Raises:
            Exception: The value is not this codec's, or of a key that it does not have.
        """


def check_codec(codec: Codec | None) -> None:
    """Check that a codec decodes its own values, before there is a record to store.

    Raises:
        JournalCodecError: It does not.
    """
    if decoded(encoded("{}", codec), codec, "") != "{}":
        raise JournalCodecError("the journal's codec does not decode what it has encoded; mend the codec")


_MARK: Final = r"\="  # nothing else begins so: `escape` never writes it, and no JSON begins with a backslash


@overload
def encoded(text: str, codec: Codec | None) -> str: ...
@overload
def encoded(text: str | None, codec: Codec | None) -> str | None: ...
def encoded(text: str | None, codec: Codec | None) -> str | None:
    """A text as it is stored: plain ASCII again. ``None`` and the empty text stay as they are.

    Raises:
        JournalCodecError: The codec has failed.
    """
    if codec is None or not text:
        return text
    try:
        return _MARK + urlsafe_b64encode(codec.encode(text.encode())).decode()
    except Exception as error:
        raise JournalCodecError(
            f"the journal's codec cannot encode a record ({type(error).__name__}), so it was not stored; "
            "mend the codec, then resume the task"
        ) from error


@overload
def decoded(text: str, codec: Codec | None, record_id: str) -> str: ...
@overload
def decoded(text: str | None, codec: Codec | None, record_id: str) -> str | None: ...
def decoded(text: str | None, codec: Codec | None, record_id: str) -> str | None:
    """The text that :func:`encoded` was given.

    Args:
        text: As it is stored.
        codec: Of this journal.
        record_id: Whose text it is, for the error.

    Raises:
        JournalCodecError: It was encoded by another codec, with another key or by none, or it is not encoded.
    """
    if not text:
        return text
    if not text.startswith(_MARK):
        if codec is None:
            return text
        raise JournalCodecError(
            f"the journal's record {record_id!a} was stored without a codec; give the journal none, or have "
            "python -m mcp_tasks_client.journal.copy --encrypt make an encrypted copy"
        )
    if codec is None:
        raise JournalCodecError(
            f"the journal's record {record_id!a} is encoded; give the journal the codec= that has done it"
        )
    try:
        return codec.decode(urlsafe_b64decode(text.removeprefix(_MARK))).decode("ascii")
    except Exception as error:
        raise JournalCodecError(
            f"the journal's codec cannot decode the record {record_id!a} ({type(error).__name__}); "
            "give it the key that the record was stored with"
        ) from error
