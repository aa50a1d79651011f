"""What reads the machine once a second.

It may import `storage`.  Invariant: a sampler that raises is turned off and named; the others go on.
"""


class Absent(Exception):
    """There is nothing here to sample; why, in words."""
