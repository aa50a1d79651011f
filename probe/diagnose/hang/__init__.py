"""What is known of a job that may be stuck: two looks at every rank, the evidence that they give, and words for it.

It may import rule.py and figures.py.  Invariant: what is unknown is said to be unknown; nothing here changes the job.
"""
