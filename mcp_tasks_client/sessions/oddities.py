"""Oddities of servers whose meaning is plain all the same: understood, and told once in the log."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Final

__all__ = ["note_oddity"]

logger = logging.getLogger("mcp_tasks_client")

_MOST: Final = 1024


@lru_cache(maxsize=_MOST)
def note_oddity(server: str, oddity: str) -> None:
    """Log a warning, once for each server and oddity.

    ``oddity`` is a sentence that holds nothing of the present request.
    """
    logger.warning(
        "%s: %s. This is understood. Report it to the author of the server or gateway.", server, oddity
    )
