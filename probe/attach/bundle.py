"""The agent's sources, in the order in which they can be executed.

Called by `delivery`.  The target gets them as the private package `_probe_agent`, in which
`_probe_agent.protocol` mirrors `probe.protocol` and so on; so they import each other relatively and nothing
else of ours.  The order follows from these imports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

SHARED = ("protocol", "streams")  # files of `probe` itself that the agent uses too
AGENT = "agent"

Bundle = list[tuple[str, str]]  # (name below the package, source)


def agent_bundle() -> Bundle:
    package = Path(__file__).parent.parent
    files = {name: package / f"{name}.py" for name in SHARED}
    for path in sorted((package / AGENT).rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return in_import_order({name: path.read_text(encoding="utf-8") for name, path in files.items()})


def in_import_order(sources: Mapping[str, str]) -> Bundle:
    """A package before its modules, a module after those that it imports when it is executed."""
    placed: dict[str, str] = {}

    def place(name: str, path: tuple[str, ...]) -> None:
        if name in placed or name in path:  # the latter: a circle, which the import statement bears too
            return
        for needed in _needs(name, sources):
            place(needed, (*path, name))
        placed[name] = sources[name]

    for name in sources:
        place(name, ())
    return list(placed.items())


def is_package(name: str, bundle: Bundle) -> bool:
    return any(other.startswith(f"{name}.") for other, _ in bundle) or not name


def _needs(name: str, sources: Mapping[str, str]) -> Iterator[str]:
    parent = name.rpartition(".")[0]
    if parent in sources:
        yield parent
    package = name if any(other.startswith(f"{name}.") for other in sources) else parent
    for node in _executed(ast.parse(sources[name])):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield from _modules_of(node, package, sources)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module does: not the bodies of functions, which import when they are called."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _executed(node)


def _modules_of(node: ast.ImportFrom, package: str, sources: Mapping[str, str]) -> Iterator[str]:
    base = package.split(".") if package else []
    base = base[: len(base) - (node.level - 1)] + ([node.module] if node.module else [])
    for name in (".".join(base), *(".".join((*base, alias.name)) for alias in node.names)):
        if name in sources:
            yield name
