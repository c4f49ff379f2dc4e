"""Durable tasks under a host's HTTP client of httpx or httpx2, for MCP sessions of any version."""
