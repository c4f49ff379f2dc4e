"""Journals: where task IDs, answers and results are kept before anything is done with them."""
