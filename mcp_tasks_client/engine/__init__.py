"""Runs calls. Read ``runner`` first: it tells the life of a call from top to bottom."""
