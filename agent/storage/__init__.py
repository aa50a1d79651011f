"""The memory in which rows, log and facts lie: memfds that readers on this host can map.

It may import `protocol` and `streams`; the standard library.  Invariant: a writer never waits, converts or allocates
what the collector would see.
"""
