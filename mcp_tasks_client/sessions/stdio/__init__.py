"""MCP over the standard streams of a process that is started here."""
