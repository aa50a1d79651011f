"""What ranks say of their memory, in words: who holds it, and what was allocated where.

May import `derive`, `snapshot` and `client`.  Invariant: sums are of measured bytes, and what is not listed is a number
of its own.
"""
