"""MCP 2025-11-25: the older generation of tasks, whole. Loaded when a server turns out to speak it."""
