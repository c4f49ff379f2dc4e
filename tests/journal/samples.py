"""Records, leases and judges that the tests of journals share."""

from mcp_tasks_client.testing.samples import *  # noqa: F403
