"""Verbs that put the agent into a job, make it reachable, and take it out."""
