"""Samplers: read counters of the process, its host and its devices once a second.

May import `storage`.  Invariant: a sampler that raises is turned off and named; the others go on.
"""
