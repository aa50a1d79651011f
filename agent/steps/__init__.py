"""The step that the job is in, the samples it trained on, and the choice of steps to record.

It may import `names`, `inspect`, `storage`.  Invariant: every step has exactly one row, written on the thread that made
the step.
"""
