"""The interactive SQL shell: prompt, completion, dot-commands, watching.

It may import the rest of the command except verbs.  Invariant: whatever a line does wrong is raised, and leaves the
shell as it was.
"""
