"""Running Python in the job: at one step on all ranks, or at once.

It may import `snapshot`, `client`, `attach` and `host`.  Invariant: no rank runs a snippet before all ranks that were
asked stand at its step, and none begins an operation between ranks before all that take part stand in front of it.
"""
