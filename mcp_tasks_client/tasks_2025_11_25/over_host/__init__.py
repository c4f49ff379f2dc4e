"""Tasks of 2025-11-25 under a host's session of the official SDK: between the session and its transport."""
