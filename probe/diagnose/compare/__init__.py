"""What differs between runs: throughput, phases, modules, collectives, memory, findings and settings of two sides.

It may import change/, measures/, rules/ and what these import.  Invariant: a difference is told with an interval, and
none where chance explains it, also the chance that one in many comparisons finds something.
"""
