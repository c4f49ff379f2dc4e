"""Clients in processes of their own, killed with SIGKILL at random instants.

``python -m tests.campaigns.torture`` kills 500.
"""
