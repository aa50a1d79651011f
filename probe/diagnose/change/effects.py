"""What a snippet that ran in the job has changed, by its code and by what the agent saw.

Called by change.py.  The agent records what a snippet rebound or assigned to outside loops; calls that set
something are known by their names, as torch writes them.  Invariant: pure; code is parsed and never run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

# torch.set_num_threads(4), setattr(…), model.requires_grad_(False), gc.disable(), model.gradient_checkpointing_enable()
_SETS = re.compile(r"set(_|attr$)|(en|dis)able|freeze|.*[a-z0-9]_$|.*_(en|dis)able(_|$)")
# persistent_workers of a made loader is set in its __dict__ only: vars(loader)['persistent_workers']
_OF_LOADERS = re.compile(r"(\.|\[')(num_workers|prefetch_factor|pin_memory|persistent_workers|collate_fn)('\])?$")
_NAMED = r"(^|[. ]|vars\(|setattr\()NAME($|[.\[,]|\)\[)"
_OF_DATASETS = re.compile(r"(^|[._])dataset\b")


def effects(code: str, changed: Sequence[str], ok: bool) -> list[str]:
    """What it assigned to, rebound or called in order to set something, as text; empty if it only read."""
    seen = [each.partition(";")[0] for each in changed]
    return list(dict.fromkeys([*seen, *(_in_code(code) if ok else ())]))


def _in_code(code: str) -> Iterator[str]:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):  # it ran under another version of Python
        return
    for node in ast.walk(tree):
        is_target = isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load)
        if is_target or (isinstance(node, ast.Call) and _SETS.match(_name(node.func))):
            yield ast.unparse(node)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def loaders_of(changes: Iterable[str], workers: dict[str, int]) -> list[str]:
    """The loaders that were changed, whose next iterator, and so the next epoch, is the first to know of it.

    workers: of each loader of the job.  Workers have copies of the dataset; without them a dataset is changed at once.
    """
    found: list[str] = []
    for change in changes:
        named = [name for name in workers if re.search(_NAMED.replace("NAME", re.escape(name)), change)]
        if _OF_DATASETS.search(change):
            found += [name for name in named or workers if workers[name]]
        elif named or _OF_LOADERS.search(change):
            found += named or workers
    return list(dict.fromkeys(found))
