"""Replicas over one journal in PostgreSQL: killed, suspended, cut off from it, and it is disturbed itself."""
