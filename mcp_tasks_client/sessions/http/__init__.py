"""MCP 2026-07-28 over Streamable HTTP."""
