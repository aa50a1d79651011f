"""What things are called: modules, models, loaders, and the names that a snippet sees.

It may import `boundary`, `inspect`, `storage`.  Invariant: nothing of the job's is kept alive or changed by looking
for its name.
"""
