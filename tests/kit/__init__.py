"""Kits that several folders of tests share. Those of :mod:`mcp_tasks_client.testing` come first.

``person``           answers what a host is asked: its callbacks, in the shape of each SDK
``json_rpc_host``    a host without an SDK, over an HTTP client; ``json_rpc_client`` answers questions as well
``stream_host``      the same over the streams of a transport
``ways``             calls a tool of a scripted server by each way in
``current_server``   a server of 2026-07-28 whose every reply the test decides
``older_server``     a server of 2025-11-25 whose every reply the test decides
``ports``            ports that the system gives to nobody else
``command``          the command over a journal of either kind, without a terminal
``probed_journal``   a journal in memory whose operations a test counts, refuses and holds up
"""
