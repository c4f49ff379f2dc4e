"""What the client costs, against the peers installed beside it.

::

    python -m tests.benchmarks                    # everything, some 20 minutes
    python -m tests.benchmarks --page             # and into the documentation, with charts
    python -m tests.benchmarks --quick            # smaller counts, once each; tells whether it works at all
    python -m tests.benchmarks --only polls --json figures.json
    python -m tests.benchmarks --only dropped-1000 dropped-call --quick

============  ====================================================================================
figures       what is measured, the rows of the table, and the limits
peers         one class for each way to call a tool: ours, FastMCP's client, hand loops
workloads     what a client is made to do while it is measured
meter         CPU, wall clock and peak memory of one process
commits       the journal against one commit a row
client        one measurement, in a process of its own
imports       one import, in a process of its own
server        the server, in a process of its own: it plays tasks, tells of them, and witnesses early polls
run           all measurements, interleaved
table         what is printed
bridge        a call through a bridge, and without one; run alone
charts        bars of the table in the documentation
============  ====================================================================================

Every ratio is one of two measurements that follow each other; the median over some such pairs counts, so
that a machine which is busy with other things disturbs both sides alike. CPU is that of the client's process.
"""
