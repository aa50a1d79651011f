"""Names of modules, models and loaders, and the names that a snippet sees.

It may import `boundary`, `inspect`, `storage`.  Invariant: finding a name neither keeps the job's objects alive nor
changes them.
"""
