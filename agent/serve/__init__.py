"""The agent's thread: its sockets, who may connect, and the answers to requests.

May import `steps`, `inspect`, `storage`.  Invariant: nothing here waits for a client.
"""
