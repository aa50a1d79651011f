"""Import all that any verb of the `probe` command does, for commands that are forked (tests/forked.py).

The agent is compiled too, which each attach would do again.
"""

import importlib
import pkgutil

import probe

APART = ("probe.agent", "probe.cli.demo_")  # what runs in jobs

for _module in pkgutil.walk_packages(probe.__path__, "probe."):
    if not _module.name.startswith(APART):
        importlib.import_module(_module.name)

from probe.attach.bundle import agent_bundle, packed  # noqa: E402

packed(agent_bundle(), same_bytecode=True)
