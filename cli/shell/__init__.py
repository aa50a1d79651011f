"""The interactive SQL shell: prompt, completion, dot-commands, watching.

It may import `output` and the session.  Invariant: whatever a line does wrong is raised, and leaves the shell as it
was.
"""
