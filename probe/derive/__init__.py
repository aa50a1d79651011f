"""How raw rows become the columns of the tables: pure numpy.

It may import `snapshot`, `host` and `arrays`.  Invariant: every function is pure; a time that was not measured is NULL.
"""
