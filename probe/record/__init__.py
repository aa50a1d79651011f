"""Recordings: the tables of a job in Parquet files, written while it runs, and an endpoint afterwards.

It may import all rooms of probe/.  Invariant: a row counts once, whatever is killed when; docs/internals/record.md says
how.
"""
