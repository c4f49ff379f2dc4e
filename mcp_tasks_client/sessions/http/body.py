"""The body of an HTTP response: decompressed, of bounded size, and always read to a clean end.

httpx reads through half a dozen nested asynchronous generators, and trio complains, rightly, about each
that is dropped half-way. So none ever is: an iteration is run to its end, or cancelled where it waits for
the network, which ends all of the generators from the inside.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, TypeAlias

import anyio

from ..request_errors import RequestErrors
from .transport import Response

__all__ = [
    "ACCEPTED_ENCODINGS",
    "DRAIN_S",
    "content_encodings",
    "drain",
    "finish",
    "read_bounded",
    "read_uncompressed",
]

ACCEPTED_ENCODINGS: Final = ("gzip", "deflate")
"""The compressions that the standard library undoes step by step, so that a bomb stays small."""

DRAIN_S: Final = 0.25
"""Seconds left to a body to end after what was wanted of it, so that its connection can be used again."""

_OVERHEAD: Final = 1024
"""Bytes by which a compressed body may be larger than what is in it."""

_GZIP_MAGIC: Final = b"\x1f\x8b"

_Decompress: TypeAlias = Callable[[bytes, int], bytes]
"""Takes compressed bytes, and the most that may come of them; returns what came of them."""


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
            # One byte more than there is room for, to see whether there is more.
            data = decompress(chunk, max_bytes - size + 1)
            taken, size = taken + len(chunk), size + len(data)
            # A compressed body can also go on for ever without anything coming of it.
            if size > max_bytes or taken > max_bytes + _OVERHEAD:
                raise errors.too_large(max_bytes, response.status)
            yield data
        ended = True
    finally:
        if not ended:
            await finish(raw, seconds=0)


def read_uncompressed(response: Response, errors: RequestErrors) -> AsyncIterator[bytes]:
    """The body of a stream without end, in chunks. Its reader bounds what it keeps of it.

    Raises:
        RemoteProtocolError: The body is compressed, which was not asked for.
    """
    if response.content is not None:
        return _Whole(response.content)
    if content_encodings(response):
        raise errors.wrong_encoding(response.status)
    return response.chunks()


class _Whole(AsyncIterator[bytes]):
    def __init__(self, content: bytes) -> None:
        self._left = [content]

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


async def drain(response: Response) -> None:
    """Read a body that nobody wants, briefly."""
    if response.content is None:
        await finish(response.chunks(), DRAIN_S)


async def finish(iterator: AsyncIterator[object], seconds: float) -> None:
    """Iterate to the end, for so long at most; then cancel whatever waits inside.

    Shielded, because a caller that is cancelled after the reply has come must not lose the reply; and
    silent, because what goes wrong after the reply changes nothing.
    """
    with anyio.move_on_after(seconds, shield=True), suppress(Exception):
        async for _ in iterator:
            pass


def content_encodings(response: Response) -> list[str]:
    """The compressions of the body, in the order in which they were applied; empty if there is none."""
    named = [one.strip().lower() for one in response.header("content-encoding").split(",")]
    return [encoding for encoding in named if encoding not in ("", "identity")]


def _decompressor(response: Response, errors: RequestErrors) -> _Decompress:
    """Our own, because the libraries decompress a chunk whole: a thousandfold, per layer."""
    inflate: _Decompress
    match content_encodings(response):
        case []:
            return lambda data, most: data[:most]
        case ["gzip" | "x-gzip"]:
            inflate = _gunzip()
        case ["deflate"]:
            inflate = _deflate()
        case _:
            raise errors.wrong_encoding(response.status)

    def decompress(data: bytes, most: int) -> bytes:
        try:
            return inflate(data, most)
        except zlib.error as error:
            what = "the body does not match its Content-Encoding"
            raise errors.malformed(what, status=response.status) from error

    return decompress


def _gunzip() -> _Decompress:
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def inflate(data: bytes, most: int) -> bytes:
        nonlocal stream
        inflated = stream.decompress(data, most)
        # A gzip file is any number of members, one after the other; it may be padded with zeros.
        while stream.eof and len(inflated) < most:
            rest = stream.unused_data.lstrip(b"\0")
            if not rest or not _GZIP_MAGIC.startswith(rest[:2]):
                break
            stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
            inflated += stream.decompress(rest, most - len(inflated))
        return inflated

    return inflate


def _deflate() -> _Decompress:
    stream = zlib.decompressobj()
    begun = b""

    def inflate(data: bytes, most: int) -> bytes:
        nonlocal stream, begun
        try:
            inflated = stream.decompress(data, most)
            begun = begun + data if len(begun) < 2 else begun
            return inflated
        except zlib.error:
            # Some servers leave out the wrapper of two bytes that the standard asks for.
            stream = zlib.decompressobj(-zlib.MAX_WBITS)
            return stream.decompress(begun + data, most)

    return inflate
