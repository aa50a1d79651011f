"""Rules on the training loop outside the model: validation, checkpoints, logging, steps that grow.

They may import measures, watched and rule.  Invariant: time is that of the thread that trains.
"""
