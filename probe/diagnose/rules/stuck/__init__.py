"""Rules on the evidence of two looks: jobs that are stuck, or seem to be.

They may import hang and rule.  Invariant: each is pure and needs no tables.
"""
