"""What is put into torch to record rows, and taken out again.

It may import all rooms above but `serve`.  Invariant: a tap that raises turns itself off; the training step never
sees it.
"""
