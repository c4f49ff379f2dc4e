"""Durable tasks under a host's HTTP client of httpx or httpx2, whatever the host's MCP session negotiated."""
