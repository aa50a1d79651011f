"""How results are shown: formats, tables, the output of many ranks.

It may import nothing of the rest of the command.  Invariant: data goes to stdout alone.
"""
