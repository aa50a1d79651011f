"""SQL over recordings on a cluster: Daft's engine on Ray, DuckDB's answers.

It may import all rooms of probe/.  Invariant: what Daft lacks, or answers otherwise than DuckDB, never reaches it.
"""
