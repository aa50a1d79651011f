"""Rules on batches: steps that wait for data, and why.

They may import watched, places and rule.  Invariant: a finding's seconds are time that the training waited.
"""
