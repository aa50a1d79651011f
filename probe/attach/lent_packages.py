"""The command's own pyzmq and nvidia-ml-py, lent to a target that has none.

Called by `delivery` once the target has said hello, by `doctor` and by `start`.  pyzmq is lent only where its
compiled part fits the target's interpreter.  nvidia-ml-py is one file of pure Python, so it fits every target that can
read it; the agent loads it under a private name, and only where there is an NVML library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Loan:
    """path: the directory to import the package from, "" where it does not fit; refused: the reason for that, which
    becomes part of the message that says what to install."""

    path: str = ""
    refused: str = ""


def lend_zmq(suffixes: list[str], version: tuple[int, ...]) -> Loan:
    """suffixes: of the extension modules that the target imports; version: of its Python."""
    spec = find_spec("zmq")
    if spec is None or spec.origin is None:
        return Loan(refused="neither has this command")
    package = Path(spec.origin).parent
    compiled = sorted((package / "backend" / "cython").glob("_zmq.*so"))
    for file in compiled:
        suffix = file.name.removeprefix("_zmq")
        if suffix in suffixes and (not suffix.startswith(".abi3") or version[:2] >= _oldest_for_abi3(package.parent)):
            return Loan(path=str(package.parent))
    names = ", ".join(file.name for file in compiled) or "no compiled part"
    return Loan(refused=f"this command's own does not fit ({names})")


def _oldest_for_abi3(site: Path) -> tuple[int, ...]:
    """The Python for which a wheel with the stable ABI was built; older ones accept its name only."""
    for wheel in site.glob("pyzmq-*.dist-info/WHEEL"):
        if match := re.search(r"^Tag: cp3(\d+)-abi3", wheel.read_text(), re.MULTILINE):
            return (3, int(match[1]))
    return (4, 0)


def pynvml_path() -> str | None:
    """The directory to import nvidia-ml-py from, None where this command has none."""
    spec = find_spec("pynvml")
    return str(Path(spec.origin).parent) if spec is not None and spec.origin is not None else None
