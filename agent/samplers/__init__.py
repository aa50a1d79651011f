"""What reads the machine once a second; agent/samplers/sampler_loop.py calls them."""


class Absent(Exception):
    """There is nothing here to sample; why, in words."""
