"""Rules on the host and its devices: cores, the GIL, memory, devices that idle.

They may import measures, watched and rule.  Invariant: a host on which several ranks run is judged once.
"""
