"""Operations of process groups: who issued them, when they began and ended.

It may import `inspect`, `storage`.  Invariant: what is issued, returned, raised and waited for is what it would be
without us.
"""
