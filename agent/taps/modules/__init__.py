"""Forward and backward of modules.

It may import `names`, `steps`, `storage`.  Invariant: the job computes bit-identical results with and without us.
"""
