"""Running Python in the job: one step on all ranks, or at once.

It may import `client` and `snapshot`.  Invariant: no rank runs a snippet unless all of those that were asked stand at
its step.
"""
