"""Which step the job is in, how many samples it trained on, and which steps are recorded.

It may import `names`, `storage`.  Invariant: every step has exactly one row, on the thread that made it.
"""
