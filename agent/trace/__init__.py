"""Calls of single functions of the job, recorded on demand.

It may import all rooms but `agent` and `main`.  Invariant: a traced function takes and gives what its own code does,
and has that code back once its trace is over.
"""
