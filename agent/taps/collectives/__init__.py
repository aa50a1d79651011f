"""Operations of process groups: what issued them, when they began and when they ended.

It may import `taps.modules`, `evals`, `boundary`, `inspect`, `storage`.  Invariant: the job issues, returns, raises and
waits for exactly what it would without us.
"""
