"""Every supported release of Python, ``mcp`` and ``fastmcp``, each in an environment of its own.

``python -m tests.campaigns.versions`` makes the environments with pip, keeps them, and runs one small host in
each. Python 3.11 to 3.14 are looked for on the path.
"""
