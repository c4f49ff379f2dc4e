"""``python -m mcp_tasks_client.journal.copy``: a journal that moves from a file to a database, or back."""
