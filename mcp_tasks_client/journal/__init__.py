"""The records of calls, which survive a crash."""
