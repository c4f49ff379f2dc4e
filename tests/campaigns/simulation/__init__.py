"""Whole lives of tasks under virtual time: the real client and the real SQLite, everything else obeys.

``python -m tests.simulation --seed 7`` plays one history and tells it; ``--histories 100000`` plays
many. A history is made of its seed alone.
"""
