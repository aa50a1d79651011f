"""Vector arithmetic on rows: distinct values, nesting of spans, Arrow arrays.

It may import numpy and pyarrow; of ours only `schema`.  Invariant: nothing here knows a stream, a table or a job.
"""
