"""The `probe` command: one file a verb."""
