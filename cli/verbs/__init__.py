"""The verbs of the `probe` command: one file each, with its click command as `command`.  None imports another."""
