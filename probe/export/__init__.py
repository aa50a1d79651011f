"""What turns rows into files that other tools open.

It may import all rooms but `connection`, `control` and `cli`.  Invariant: what a file says adds up to the rows that it
was made of; where it says less than they do, it says so.
"""
