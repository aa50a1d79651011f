"""Connections to agents: endpoints, the handshake, requests and replies.

It may import the leaves and `host`.  Invariant: every request ends by its deadline, and no reply is believed before
it was checked.
"""
