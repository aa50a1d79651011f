"""Verbs that ask a job, or change it, in SQL or Python."""
