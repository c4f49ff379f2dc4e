"""Durable client for MCP Tasks."""
