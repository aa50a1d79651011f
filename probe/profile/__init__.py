"""Python stacks of a rank, sampled from outside: `probe profile` and the table python.profile.

The agent says once where its interpreter keeps its frames (agent/inspect/interpreter_layout.py).  A process of its own
(profiler) copies them out of the rank's memory (memory), as often as asked: stacks of threads (thread_stack), named by
their code objects (code_objects).  It deposits what it has seen with the agent, which keeps it as it keeps all rows.
It may import `client` and `host`.  Invariant: the rank is not stopped, its GIL is not asked for, and none of its code
runs.
"""
