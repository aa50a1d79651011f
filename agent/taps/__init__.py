"""The taps: what is installed in torch to record rows, and removed again.

It may import all rooms but `agent`, `main`, `facts`, `trace`, `samplers`, `memory`, `capture` and `serve`.  Invariant:
a tap that raises turns itself off; the training step never sees the exception.
"""
