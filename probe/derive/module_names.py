"""What modules, optimizers and their models are called, out of what the agent has logged.

Called by the tables that name modules.  Invariant: a name is what the agent found, or there is none.
"""

from __future__ import annotations

from ..snapshot.log import Log


def types_of(log: Log) -> dict[int, str]:
    """The class name of each module and optimizer."""
    known = {**log.modules, **log.optimizers}
    return {serial: str(thing["type"]) for serial, thing in known.items() if thing.get("type")}


def names_of(log: Log) -> dict[int, str]:
    """What a module is called in its model, which may be a module that nobody calls; of an optimizer its class."""
    modules, names = log.modules, dict[int, str]()
    for serial, thing in {**modules, **log.optimizers}.items():
        root = thing.get("root") or serial
        within = modules.get(root, {}).get("within") if serial in modules else None
        parts = (within, None if root == serial and within else thing.get("name"))
        if name := ".".join(str(each) for each in parts if each):
            names[serial] = name
    return names


def models_of(log: Log) -> dict[int, str]:
    """What the model of each module is called."""
    modules = log.modules
    roots = {serial: modules.get(module.get("root") or serial, module) for serial, module in modules.items()}
    return {serial: str(root.get("model") or root.get("type")) for serial, root in roots.items()}
