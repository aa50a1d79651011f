"""Evals: a client arms a snippet; the training thread runs it at a boundary between two steps, or a thread of its own
runs it at once.

The life of an eval on one rank:

- armed: the client sends `arm` and gets `armed` back, with the rank's step count and typical step time.  An armed eval
  expires after 30 s.
- waiting at the step: the client, having heard from every rank, sends `go` with one step count.  At the boundary after
  that step the training thread stops and the agent posts `ready`.  While other ranks are still on their way, the client
  keeps sending `stay`; a rank that gets neither `stay` nor `run` for 5 s gives the eval up and trains on.  A count of
  -1 means the next boundary, without waiting for `run`; an eval with where="now" does not wait at all.
- running: the client sends `run` once every rank is ready.  Output leaves as `out` messages.  The time-out counts from
  here.  In front of each operation between ranks (gates.py) the agent posts `wants` and the snippet waits for `pass`.
  If its client, which keeps sending `stay`, is silent for 5 s, the snippet ends there.
- done: the agent posts `done` with the result, or `error` with the code `eval-missed` if the eval never ran.

`cancel` withdraws an eval that has not started.  One that has is interrupted; if it has had operations between ranks,
it first gets up to 10 s to end in front of its next one, or after the call of its own that the next one is a part of:
each rank then ends at the same place.

May import `capture`, `serve`, `steps`, `names`, `boundary`, `inspect`, `storage`.  Invariant: when the snippet has
ended, the job's streams and variables are its own again.
"""
