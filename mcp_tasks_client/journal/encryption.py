"""Encryption of the private values in a journal: by Fernet, with keys that can be changed."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

__all__ = ["FernetCodec"]


class FernetCodec:
    """A codec for journals that encrypts by Fernet (AES-128-CBC with HMAC-SHA256).

    It needs the extra ``mcp-tasks-client[encryption]``. A value that was changed in the file or the database,
    or encrypted with a key that is not given, is not decrypted.

    Args:
        keys: Keys as ``cryptography.fernet.Fernet.generate_key()`` makes them. The first one encrypts, and
            each of them decrypts.

    Raises:
        ValueError: There is no key, or one is not 32 bytes in URL-safe base64.
        ImportError: ``cryptography`` is not installed.
    """

    def __init__(self, *keys: bytes | str) -> None:
        # Imported on use, since most hosts encrypt nothing.
        from cryptography.fernet import Fernet, MultiFernet

        if not keys:
            raise ValueError("FernetCodec needs a key; Fernet.generate_key() makes one")
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    # A token is base64, and a journal stores base64: decoded here, the value grows only once.

    def encode(self, value: bytes, /) -> bytes:
        """Encrypt with the first key."""
        return urlsafe_b64decode(self._fernet.encrypt(value))

    def decode(self, value: bytes, /) -> bytes:
        """Decrypt with any of the keys.

        Raises:
            cryptography.fernet.InvalidToken: None of the keys fits.
        """
        return self._fernet.decrypt(urlsafe_b64encode(value))
