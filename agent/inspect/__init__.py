"""Inspecting the job's threads and frames without disturbing them.

It may import `storage`.  Invariant: no frame is kept after the call that looked at it.
"""
