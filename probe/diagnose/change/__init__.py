"""What a change brought: which evals changed something, from which step on, and the steps before and after.

It may import rule.py and figures.py.  Invariant: a difference is told with an interval, and none where chance explains
it.
"""
