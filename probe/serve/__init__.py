"""The server beside a job: passes requests from ZeroMQ clients to the agents of this host, so that no network library
is in the training.

`launch` prepares and starts it for an attach, `keeper` starts it again if it dies, `server` is the process itself.  It
may import `snapshot`, `profile`, `client`, `attach` and `host`; `keeper` only the leaves and `host`, `launch` the
refusals of `attach` as well.  Invariant: it holds nothing of the training's, runs as the job's user, and can do no more
than the keys that it was started with.
"""
