"""The agent's sources, in the order in which they can be executed.

Called by `attach`.  The target gets them as the private package `_probe_agent`, in which
`_probe_agent.protocol` mirrors `probe.protocol` and so on; so they import each other relatively and nothing
else of ours.  The order follows from these imports.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType

SHARED = ("protocol", "streams")  # files of `probe` itself that the agent uses too
AGENT = "agent"
# An import in column 0 runs with its module; an indented one stands in a function and runs when that is called.
_RELATIVE_IMPORT = re.compile(r"^from (\.+)([\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """One module, by its name below the package."""

    name: str
    is_package: bool
    source: str

    def code(self) -> CodeType:
        """As this interpreter compiles it; tracebacks in the target show no path of this machine."""
        return compile(self.source, f"<probe>/{self.name.replace('.', '/')}.py", "exec", dont_inherit=True)


def digest(bundle: Iterable[Part], version: str) -> str:
    """By which the same code of the same version is known."""
    known = hashlib.sha256(version.encode())
    for part in bundle:
        known.update(f"\0{part.name}\0{part.source}".encode())
    return known.hexdigest()


@cache
def agent_bundle() -> tuple[Part, ...]:
    """Read and put in order once: many ranks are attached to by one command."""
    package = os.path.dirname(os.path.dirname(__file__))
    files = {name: os.path.join(package, f"{name}.py") for name in SHARED}
    files.update(_below(os.path.join(package, AGENT), AGENT))
    return tuple(bundle_of({name: _read(path) for name, path in files.items()}))


def bundle_of(sources: Mapping[str, str]) -> list[Part]:
    """Parts in import order: a package before its modules, a module after those that it imports when executed."""
    packages = {name.rpartition(".")[0] for name in sources}
    placed: dict[str, Part] = {}

    def place(name: str, path: tuple[str, ...]) -> None:
        if name in placed or name in path:  # the latter: a circle, which the import statement bears too
            return
        for needed in _needs(name, sources, packages):
            place(needed, (*path, name))
        placed[name] = Part(name, name in packages, sources[name])

    for name in sources:
        place(name, ())
    return list(placed.values())


def _below(folder: str, name: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        if os.path.isdir(path) and os.path.exists(os.path.join(path, "__init__.py")):
            yield from _below(path, f"{name}.{entry}")
        elif entry == "__init__.py":
            yield name, path
        elif entry.endswith(".py"):
            yield f"{name}.{entry[:-3]}", path


def _needs(name: str, sources: Mapping[str, str], packages: set[str]) -> Iterator[str]:
    parent = name.rpartition(".")[0]
    if parent in sources:
        yield parent
    package = name if name in packages else parent
    for dots, module, names in _RELATIVE_IMPORT.findall(sources[name]):
        base = package.split(".") if package else []
        base = base[: len(base) - (len(dots) - 1)] + ([module] if module else [])
        for imported in ("", *re.findall(r"\w+", names)):
            candidate = ".".join((*base, imported)) if imported else ".".join(base)
            if candidate in sources:
                yield candidate


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
