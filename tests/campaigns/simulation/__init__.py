"""Whole lives of tasks under virtual time: the real client; processes, journal and faults obey a seed.

``python -m tests.campaigns.simulation --seed 7`` plays one history and tells it; ``--histories 10000``
plays many. A history is made of its seed alone.
"""
