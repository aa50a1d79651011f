"""Rules on several ranks: late ones, and collectives that cost too much.

They may import measures, lateness, watched and rule.  Invariant: with one rank they are skipped, not silent.
"""
