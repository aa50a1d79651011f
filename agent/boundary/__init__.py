"""The moment between two steps: finds the loop that drives the job and runs requests there.

It may import `inspect`.  Invariant: once the boundary has passed, the job's own tracing is as it was before.
"""
