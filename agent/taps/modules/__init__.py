"""Forward and backward of modules.

It may import `names`, `steps`, `storage`.  Invariant: what the job computes is bit-identical with and without us.
"""
