"""Clients in processes of their own, killed with SIGKILL at named stops and at random instants.

``python -m tests.campaigns.torture`` kills 500 of the latter.
"""
