"""The verbs, one file each; a new one is a file in a room here and its name in `SECTIONS` of program.py.

The rooms are the sections of the help: `job` (attach, serve, leave), `data` (ask and change), `insight` (find out why),
`about` (the command itself).
It may import everything else of the command.  Invariant: no verb imports another.
"""
