"""One moment of a job: facts, log, rows and steps of every rank, from wherever they can be had.

It may import `profile`, `client`, `host`, `arrays`.  Invariant: all rows of one snapshot belong to the same moment, and
no row travels twice.
"""
