"""Which ranks the others wait for, and on what these spend the time.

It may import rule.py.  Invariant: no rank is called late if chance could explain it.
"""
