"""Recordings: the tables of a job in Parquet files, written while it runs, and an endpoint afterwards.

It may import all rooms but `comparing` and `cli`.  Invariant: a row counts once, whatever is killed when;
docs/internals/record.md says how.
"""
