"""What several rules measure: where the thread stood, loaders, calls of modules, hosts, memory, values of the job.

It may import watched.py, rule.py and figures.py.  Invariant: a measure judges nothing; rules have the thresholds.
"""
