"""The moment between two steps: finding the loop that drives the job and running there.

It may import `inspect`.  Invariant: the job's own tracing is as it was once the boundary has passed.
"""
