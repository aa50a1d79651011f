"""SQL over a snapshot: DuckDB, what it asks of the tables, and what is cached between queries.

It may import `tables`, `derive`, `snapshot`, `client`, `host`, `arrays`.  Invariant: a filter, a cache or a
partition never changes a result.
"""
