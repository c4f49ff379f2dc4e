"""Hosts of others, in other languages, that start a bridge by their own configuration.

``npm``             packages of npm, installed once and kept
``turns``           what a model does in a host, turn by turn
``scripted_model``  a model on the loopback that plays turns, for agents that are driven by one
``hosts``           the hosts, each started with the command of a bridge
``servers``         the servers of others behind the bridge
``ts_client.mjs``   a host on the official SDK for TypeScript, ``sdk_1_client.py`` one on ``mcp`` 1.x
"""
