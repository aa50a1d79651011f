"""Import all that any verb of the `probe` command does, for commands that are forked (tests/forked.py)."""

import importlib
import pkgutil

import probe

APART = ("probe.agent", "probe.cli.demo_job")  # what runs in jobs

for _module in pkgutil.walk_packages(probe.__path__, "probe."):
    if not _module.name.startswith(APART):
        importlib.import_module(_module.name)
