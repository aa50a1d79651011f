"""The verbs, one file each; a new one is a file in a room here and its name in `VERBS`.

The rooms are the sections of the help: `job` (attach, serve, leave), `data` (ask and change), `insight` (find out why).
It may import everything else of the command.  Invariant: no verb imports another.
"""
