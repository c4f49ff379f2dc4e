"""Long tests of the laws, through the public face only. Each has a short form in the two halves of the tests.

================  ==================================================================================
``crash_points``  a host is stopped at each of its commits and sends, one after the other
``cancellation``  a call is cancelled at every step of the event loop
``simulation``    whole lives under virtual time and seeded faults, and defects that they must find
``torture``       processes killed with SIGKILL at random moments, while others answer
``kill``          processes killed with SIGKILL at named points
``workers``       workers that adopt calls, killed while others answer
``bridges``       bridges and their hosts, killed with SIGKILL, whose models go on with their calls
``fleet``         replicas over one database, killed, suspended, and cut off from it in many ways
``storm``         bad weather before real servers of 2025-11-25
``conformance``   the conformance suite of the protocol
``versions``      every supported release of Python, ``mcp`` and ``fastmcp``
================  ==================================================================================

``pytest --long`` runs the long forms. ``python -m tests.campaigns.NAME --help`` tells how to run one alone.
"""
