"""Replicas over one journal in PostgreSQL: killed, suspended, and their database restarted and cut off."""
