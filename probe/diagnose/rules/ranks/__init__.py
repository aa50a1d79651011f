"""Rules on several ranks: late ones, and collectives that cost too much.

They may import watched, places, stragglers and rule.  Invariant: with one rank they are skipped, not silent.
"""
