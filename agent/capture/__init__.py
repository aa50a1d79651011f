"""Captures: torch's own profiler, run over some steps, and its trace; the history of its allocator, likewise.

A client arms a capture as it arms a snippet, so that all ranks begin at the same step (`evals`); it ends by itself at
the boundary so many steps later.  May import `serve`, `steps`, `boundary`, `inspect`, `storage`.  Invariant: the
profiler is switched on and off on the training thread at a boundary, since torch crashes otherwise; and neither ever
meets one of the job's own.
"""
