"""Bad weather before the real servers of 2025-11-25, by seeds: what is lost, refused, cut and killed there.

The state machine has a simulation of its own. What is tested here is what lies around it at those servers:
sessions, streams, and the questions that come in requests of the server's.
"""
