"""This machine as /proc shows it: processes, threads, limits, and the memory of agents.

It may import the leaves; the standard library.  Invariant: nothing here talks to an agent or stops a process.
"""
