"""Every supported release of Python, ``mcp`` and ``fastmcp``, each in an environment of its own.

``python -m tests.campaigns.versions`` makes the environments with pip, keeps them, and runs one small host in
each. Python 3.11, 3.12 and 3.13 are looked for on the path.
"""
