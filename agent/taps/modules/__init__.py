"""Forward and backward of modules.

It may import `steps`, `boundary`, `inspect`, `storage`.  Invariant: the job computes bit-identical results with and
without us.
"""
