"""How results are shown: formats, tables, the output of many ranks.

It may import nothing else of the command.  Invariant: data goes to stdout or the file of -o, and nowhere else.
"""
