"""Shared memory for rows, log and facts: memfds that readers on this host can map.

It may import `protocol`, `streams` and the standard library.  Invariant: a writer never waits, never converts, and
allocates nothing that the garbage collector tracks.
"""
