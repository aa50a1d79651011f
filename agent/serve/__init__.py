"""The agent's thread: its sockets, who may ask, and what is answered.

It may import `steps`, `storage`.  Invariant: nothing here waits for a client.
"""
