"""Rules on what the model and its optimizer do: too small, too often, twice, in vain.

They may import measures, watched and rule.  Invariant: what could not be timed
counts as unknown, not as nothing.
"""
