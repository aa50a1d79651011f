"""The tables of schema python: what happens inside the training process; one file each."""
