"""The body of an HTTP response: decompressed, of bounded size, and always read to a clean end.

httpx reads through half a dozen nested asynchronous generators, and trio complains, rightly, about each
that is dropped half-way. So none ever is: an iteration is run to its end, or cancelled where it waits for
the network, which ends all of the generators from the inside.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

import anyio

from ..request_errors import RequestErrors
from .transport import Response

__all__ = [
    "ACCEPTED_ENCODINGS",
    "DRAIN_S",
    "drain",
    "finish",
    "read_bounded",
    "read_uncompressed",
]

ACCEPTED_ENCODINGS: Final = ("gzip", "deflate")
"""The compressions that the standard library undoes step by step, so that a bomb stays small."""

DRAIN_S: Final = 0.25
"""Seconds left to a body to end after its wanted part, so that its connection can be used again."""

_OVERHEAD: Final = 1024
"""Bytes by which a compressed body may be larger than its content."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
"""Has zlib tell by the first bytes."""


async def read_bounded(response: Response, max_bytes: int, errors: RequestErrors) -> AsyncIterator[bytes]:
    """The body, decompressed, in chunks.

    Raises:
        RemoteProtocolError: The body is larger than ``max_bytes``, not compressed as it says, or
            compressed in a way that was not offered.
        Exception: The body could not be read to its end; one of the transport's failures.
    """
    if response.content is not None:
        if len(response.content) > max_bytes:
            raise errors.too_large(max_bytes, response.status)
        yield response.content
        return
    decompress = _decompressor(response, errors)
    taken = size = 0
    raw, ended = response.chunks(), False
    try:
        async for chunk in raw:
            if not chunk:
                continue
            # One byte more than there is room for, to see whether there is more.
            data = decompress(chunk, max_bytes - size + 1)
            taken, size = taken + len(chunk), size + len(data)
            # A compressed body can also go on for ever without content.
            if size > max_bytes or taken > max_bytes + _OVERHEAD:
                raise errors.too_large(max_bytes, response.status)
            yield data
        ended = True
    finally:
        if not ended:
            await finish(raw, seconds=0)


def read_uncompressed(response: Response, errors: RequestErrors) -> AsyncIterator[bytes]:
    """The body of a stream without end, in chunks. Its reader bounds its own memory.

    Raises:
        RemoteProtocolError: The body is compressed, which was not asked for.
    """
    if _encodings(response):
        raise errors.wrong_encoding(response.status)
    return response.chunks()


async def drain(response: Response) -> None:
    """Read an unwanted body, briefly."""
    if response.content is None:
        await finish(response.chunks(), DRAIN_S)


async def finish(iterator: AsyncIterator[object], seconds: float) -> None:
    """Iterate to the end, for ``seconds`` at most; then cancel the iteration.

    Shielded, because a caller that is cancelled after the reply has come must not lose the reply; and
    silent, because a failure after the reply changes nothing.
    """
    with anyio.move_on_after(seconds, shield=True), suppress(Exception):
        async for _ in iterator:
            pass


def _encodings(response: Response) -> list[str]:
    """The compressions of the body, in the order in which they were applied; empty if there is none."""
    named = [one.strip().lower() for one in response.header("content-encoding").split(",")]
    return [encoding for encoding in named if encoding not in ("", "identity")]


def _decompressor(response: Response, errors: RequestErrors) -> Callable[[bytes, int], bytes]:
    """A function that takes compressed bytes and the most bytes to return, and returns their content.

    Our own, because the libraries decompress a chunk whole: a thousandfold, per layer.
    """
    encodings = _encodings(response)
    if not encodings:
        return lambda data, most: data[:most]
    if encodings not in (["gzip"], ["x-gzip"], ["deflate"]):
        raise errors.wrong_encoding(response.status)
    stream = None

    def decompress(data: bytes, most: int) -> bytes:
        nonlocal stream
        if stream is None:
            # Some servers leave out the header that "deflate" has by the standard. Its first byte ends in 8.
            bare = encodings == ["deflate"] and data[0] & 0xF != 8
            stream = zlib.decompressobj(-zlib.MAX_WBITS if bare else _GZIP_OR_ZLIB)
        try:
            inflated = stream.decompress(data, most)
            # A gzip file is any number of members, one after the other; it may be padded with zeros.
            while stream.eof and len(inflated) < most:
                rest = stream.unused_data.lstrip(b"\0")
                if not rest or not _GZIP_MAGIC.startswith(rest[:2]):
                    break
                stream = zlib.decompressobj(_GZIP_OR_ZLIB)
                inflated += stream.decompress(rest, most - len(inflated))
            return inflated
        except zlib.error as error:
            fault = "the body does not match its Content-Encoding"
            raise errors.malformed(fault, status=response.status) from error

    return decompress
