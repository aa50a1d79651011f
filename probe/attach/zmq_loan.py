"""The command's own pyzmq, lent to a target that has none.

Called by `delivery` once the target has said hello without pyzmq.  Lent only where the compiled part fits the
target's interpreter; otherwise the reason, for the message that says what to install.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path


def lend(suffixes: list[str], version: tuple[int, ...]) -> dict[str, str]:
    """path: the directory to import it from, "" when it does not fit; refused: why not.
    suffixes: of the extension modules that the target imports."""
    spec = find_spec("zmq")
    if spec is None or spec.origin is None:
        return {"path": "", "refused": "neither has this command"}
    package = Path(spec.origin).parent
    compiled = sorted((package / "backend" / "cython").glob("_zmq.*so"))
    fitting = [file for file in compiled if _fits(file, package, suffixes, version)]
    if fitting:
        return {"path": str(package.parent), "refused": ""}
    names = ", ".join(file.name for file in compiled) or "no compiled part"
    return {"path": "", "refused": f"the one of this command does not fit ({names})"}


def _fits(file: Path, package: Path, suffixes: list[str], version: tuple[int, ...]) -> bool:
    suffix = file.name.removeprefix("_zmq")
    if suffix not in suffixes:
        return False
    return not suffix.startswith(".abi3") or version[:2] >= _oldest_for_abi3(package.parent)


def _oldest_for_abi3(site: Path) -> tuple[int, ...]:
    """The Python for which a wheel with the stable ABI was built; older ones accept its name only."""
    for wheel in site.glob("pyzmq-*.dist-info/WHEEL"):
        if match := re.search(r"^Tag: cp3(\d+)-abi3", wheel.read_text(), re.MULTILINE):
            return (3, int(match[1]))
    return (4, 0)
