"""Looking at the job's threads and frames without disturbing them.

It may import `storage`.  Invariant: no frame outlives the call that looked at it.
"""
