"""``python -m mcp_tasks_client`` is the command ``mcp-tasks``."""

from .cli import main

raise SystemExit(main())
