"""The tables of schema probe: what the tool knows of a job and of itself, and what is derived from all ranks at once;
one file each."""
