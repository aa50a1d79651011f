"""Captures: torch's profiler run over some steps of all ranks, and rows made of its traces.

The agents begin at one step, as for an eval, and end by themselves (agent/capture/).  `capture` drives them, takes the
traces, and deposits with each agent the rows that `trace` makes; the tables read those as all rows.  It may import
`evals`, `snapshot`, `client` and `host`.  Invariant: whatever ends the command, each rank's profiler is off at its next
boundary.
"""
