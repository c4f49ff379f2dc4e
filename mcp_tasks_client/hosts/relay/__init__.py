"""Durable tasks under a host's session of the official SDK: between the session and its transport."""
