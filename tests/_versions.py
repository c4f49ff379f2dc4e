"""Which SDK is installed, for the tests of what not every version of it can do."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

__all__ = ["SDK", "SDK_STARTS_COMMANDS"]

SDK: Final = tuple(int(part) for part in version("mcp").split(".")[:2])
SDK_STARTS_COMMANDS: Final = SDK >= (2, 1)
"""Whether ``mcp.Client`` takes ``StdioServerParameters``."""
