"""The agent's sources, in an order in which they can be executed.

Called by `attach` and `start`.  The target gets them as the private package `_probe_agent`, in which
`_probe_agent.protocol` mirrors `probe.protocol` and so on, so they import each other relatively and nothing else of
ours.  The order follows from these imports.
"""

from __future__ import annotations

import binascii
import hashlib
import marshal
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

SHARED = ("protocol", "streams")  # files of `probe` itself that the agent uses too
AGENT, MAIN = "agent", "agent.main"
_RELATIVE_IMPORT = r"from (\.+)([\w.]*) import (\([^)]*\)|.*)"
# An import in column 0 runs with its module; an indented one stands in a function and runs when that is called.
_EXECUTED = re.compile("^" + _RELATIVE_IMPORT, re.MULTILINE)
_ANYWHERE = re.compile("^[ \t]*" + _RELATIVE_IMPORT, re.MULTILINE)


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
    """Identifies this code of this version."""
    known = hashlib.sha256(version.encode())
    for part in bundle:
        known.update(f"\0{part.name}\0{part.source}".encode())
    return known.hexdigest()


def packed(bundle: Sequence[Part], same_bytecode: bool) -> list[list[Any]]:
    """Per module: name, whether it is a package, source, bytecode.  Either of the last two is "": bytecode goes to an
    interpreter that takes ours, for compiling would hold its GIL for some milliseconds a file."""
    if not same_bytecode:
        return [[part.name, part.is_package, part.source, ""] for part in bundle]
    return [[part.name, part.is_package, "", _bytecode(part)] for part in bundle]


@cache
def _bytecode(part: Part) -> str:
    """Compiled once, since one command attaches to many ranks."""
    return binascii.b2a_base64(marshal.dumps(part.code()), newline=False).decode()


@cache
def agent_bundle() -> tuple[Part, ...]:
    """Read and ordered once, since one command attaches to many ranks."""
    return tuple(bundle_of(_reached(_sources(Path(__file__).parents[1]))))


def _sources(package: Path) -> dict[str, str]:
    """Of files that may be the agent's, by name.  A package goes before a module of its name, as Python has it."""
    agent = sorted((package / AGENT).rglob("*.py"), key=lambda path: (path.name == "__init__.py", path))
    files = [*(package / f"{name}.py" for name in SHARED), *agent]
    names = (".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__") for path in files)
    return {name: path.read_text(encoding="utf-8") for name, path in zip(names, files, strict=True)}


def _reached(sources: Mapping[str, str]) -> dict[str, str]:
    """What the agent imports, sooner or later.  `pip install .` also installs files that an older version had, as long
    as setuptools finds them in build/; one of these may import what is gone."""
    packages = _packages(sources)
    found: set[str] = set()
    todo = [MAIN]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += _needs(name, sources, packages, _ANYWHERE)
    return {name: source for name, source in sources.items() if name in found}


def bundle_of(sources: Mapping[str, str]) -> list[Part]:
    """Parts in import order: a package before its modules, a module after those that it imports when executed."""
    packages = _packages(sources)
    placed: dict[str, Part] = {}

    def place(name: str, path: tuple[str, ...]) -> None:
        if name in placed or name in path:  # the latter: a circular import, which Python's import allows too
            return
        for needed in _needs(name, sources, packages, _EXECUTED):
            place(needed, (*path, name))
        placed[name] = Part(name, name in packages, sources[name])

    for name in sources:
        place(name, ())
    return list(placed.values())


def _packages(sources: Mapping[str, str]) -> set[str]:
    return {name.rpartition(".")[0] for name in sources}


def _needs(name: str, sources: Mapping[str, str], packages: set[str], imports: re.Pattern[str]) -> Iterator[str]:
    parent = name.rpartition(".")[0]
    if parent in sources:
        yield parent
    package = name if name in packages else parent
    for dots, module, names in imports.findall(sources[name]):
        base = package.split(".") if package else []
        base = base[: len(base) - (len(dots) - 1)] + ([module] if module else [])
        for imported in ("", *re.findall(r"\w+", names)):
            candidate = ".".join((*base, imported)) if imported else ".".join(base)
            if candidate in sources:
                yield candidate


def pynvml_path() -> str | None:
    """The directory from which the agent can import nvidia-ml-py, None where this command has none.

    It is one file of pure Python; the agent loads it under a private name, and only where there is an NVML library.
    """
    spec = find_spec("pynvml")
    return str(Path(spec.origin).parent) if spec is not None and spec.origin is not None else None
