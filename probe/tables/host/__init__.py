"""The tables of schema host: what the machine does; one file each."""
