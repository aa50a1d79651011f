"""What processors can do at most: known from data sheets, or measured by `probe doctor --peak`.

It may import what `host` may, and `host.nvml`.  Invariant: no peak is estimated.
"""
