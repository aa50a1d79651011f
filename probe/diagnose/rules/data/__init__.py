"""Rules on batches: steps that wait for data, and why.

They may import measures, watched and rule.  Invariant: a finding's seconds are time that the training waited.
"""
