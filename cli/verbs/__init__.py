"""The verbs, one file each; a new one is a file here and its name in `VERBS`.

It may import everything else of the command.  Invariant: no verb imports another.
"""
