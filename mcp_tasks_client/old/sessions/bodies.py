"""The bytes of an HTTP response: decompressed, of bounded size, and always read to a clean end.

Theory of operation: httpx reads through half a dozen nested asynchronous generators, and trio
complains, rightly, about each that is dropped half-way. So none ever is: an iteration is run to
its end, or cancelled where it waits for the network, which ends all of them from the inside.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, TypeAlias

import anyio

from .faults import Faults
from .transport import Response

__all__ = ["ACCEPTED_ENCODINGS", "DRAIN_S", "bounded_body", "drain", "encodings_of", "run_out"]

ACCEPTED_ENCODINGS: Final = ("gzip", "deflate")
"""The compressions that the standard library undoes step by step, so that a bomb stays small."""

DRAIN_S: Final = 0.25
"""Seconds left to a body to end after what was wanted of it. Its connection can then be used again."""

_OVERHEAD: Final = 1024
"""Bytes by which a compressed body may be larger than what is in it."""

_GZIP_MAGIC: Final = b"\x1f\x8b"

_Decompress: TypeAlias = Callable[[bytes, int], bytes]
"""Takes compressed bytes, and the most that may come of them; gives what came of them."""


async def bounded_body(response: Response, max_bytes: int, faults: Faults) -> AsyncIterator[bytes]:
    """The body, decompressed, in chunks.

    Raises:
        RemoteProtocolError: It is larger than ``max_bytes``, or not compressed as it says or as
            we offered.
        Exception: It could not be read to its end; one of the transport's failures.
    """
    if response.content is not None:
        if len(response.content) > max_bytes:
            raise faults.too_large(max_bytes, response.status)
        yield response.content
        return
    decompress = _decompressor(response, faults)
    taken = size = 0
    raw, ended = response.chunks(), False
    try:
        async for chunk in raw:
            # One byte more than there is room for, to see whether there is more.
            data = decompress(chunk, max_bytes - size + 1)
            taken, size = taken + len(chunk), size + len(data)
            # A compressed body can also go on for ever without anything coming of it.
            if size > max_bytes or taken > max_bytes + _OVERHEAD:
                raise faults.too_large(max_bytes, response.status)
            yield data
        ended = True
    finally:
        if not ended:
            await run_out(raw, seconds=0)


async def drain(response: Response) -> None:
    """Read a body that nobody wanted, briefly."""
    if response.content is None:
        await run_out(response.chunks(), DRAIN_S)


async def run_out(iterator: AsyncIterator[object], seconds: float) -> None:
    """Iterate to the end, for so long at most; then whatever waits inside is cancelled.

    Shielded, because who cancels us after the reply has come must not lose it; and silent,
    because what goes wrong after it changes nothing.
    """
    with anyio.move_on_after(seconds, shield=True), suppress(Exception):
        async for _ in iterator:
            pass


def encodings_of(response: Response) -> list[str]:
    """How the body is compressed, in the order in which that was done; empty if it is not."""
    named = [one.strip().lower() for one in response.header("content-encoding").split(",")]
    return [encoding for encoding in named if encoding not in ("", "identity")]


def _decompressor(response: Response, faults: Faults) -> _Decompress:
    """Our own, because the libraries make of a chunk whatever it becomes: a thousandfold, per layer."""
    inflate: _Decompress
    match encodings_of(response):
        case []:
            return lambda data, most: data[:most]
        case ["gzip" | "x-gzip"]:
            inflate = _gunzip()
        case ["deflate"]:
            inflate = _deflate()
        case _:
            raise faults.wrong_encoding(response.status)

    def decompress(data: bytes, most: int) -> bytes:
        try:
            return inflate(data, most)
        except zlib.error as error:
            what = "the body does not match its Content-Encoding"
            raise faults.malformed(what, status=response.status) from error

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
