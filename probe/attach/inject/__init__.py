"""Stops one thread of a process and makes it start another: ptrace, the safe point, the call.

It may import the leaves, `host`, and the refusals, deferred signals and installations of `attach`.  Invariant: whatever
happens, the stopped thread goes on exactly where it stood.
"""
