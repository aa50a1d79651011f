"""What reads the machine once a second; agent/machine.py calls them."""


class Absent(Exception):
    """There is nothing here to sample; why, in words."""
