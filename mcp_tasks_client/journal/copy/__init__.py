"""Moves a journal from a SQLite file to PostgreSQL, or back: ``python -m mcp_tasks_client.journal.copy``."""
