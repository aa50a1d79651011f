"""Snippets: armed by a reader, run by the training thread at a boundary or at once.

It may import `serve`, `steps`, `names`, `boundary`.  Invariant: the job's streams and variables are its own again
when the snippet has ended.
"""
