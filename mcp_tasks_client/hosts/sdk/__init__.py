"""MCP 2026-07-28 over a client of the official SDK or of FastMCP."""
