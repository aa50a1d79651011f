"""Verbs that find out why a job is slow or stuck."""
