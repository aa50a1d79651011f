"""Why a job is stuck or slow: evidence, findings, verdicts.

It may import all rooms but `evals` and `connection`.  Invariant: a verdict is a pure function of the evidence, and
what is unknown is said to be.
"""
