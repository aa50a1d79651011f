"""Which modules the optimizers of a job train, read from the job.

Called by rules.  Invariant: a module counts as unowned only if every optimizer in the process was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...errors import SilentError
from ..watched import Watched
from .live_values import ALL_OPTIMIZERS, OPTIMIZERS, is_readable, of_model, value

# Of a model: the modules of which no optimizer owns a parameter although some are differentiated, and those with
# parameters of their own that an optimizer owns.
_OWNED = (
    "(lambda owned: ([n for n, m in ROOT.named_modules() if any(p.requires_grad for p in m.parameters()) and "
    "not any(id(p) in owned for p in m.parameters())], [n for n, m in ROOT.named_modules() "
    "if any(id(p) in owned for p in m.parameters(False))]))"
    "({{id(p) for _, o in {} for g in o.param_groups for p in g['params']}})"
)
ASKS = tuple(map(_OWNED.format, (OPTIMIZERS, ALL_OPTIMIZERS)))
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


@dataclass(frozen=True)
class Owners:
    """Of one model.  unowned: modules of which nothing is trained, owned: modules of whose own parameters something is;
    by their names in the tables, but '' is the model."""

    root: str
    unowned: Sequence[str]
    owned: Sequence[str]

    @property
    def outermost(self) -> list[str]:
        """The unowned modules that are in no other one."""
        return [each for each in self.unowned if sum(is_within(each, other) for other in self.unowned) == 1]

    def is_unowned(self, module: str) -> bool:
        """Whether nothing of it is trained; of a module without parameters, nothing of what it is in."""
        return any(is_within(module, each) for each in self.unowned)


def is_within(module: str, other: str) -> bool:
    return not other or module == other or module.startswith(f"{other}.")


def owners(watched: Watched, roots: Iterable[str], matter: Callable[[Sequence[Owners]], bool]) -> list[Owners]:
    """Of these models; [] if the optimizers own copies of their parameters.  Raises SilentError if it cannot be read.

    matter: whether what is unowned there would matter; then all objects of the job are looked through.
    """
    of_frame, of_process = ASKS
    models = [root for root in roots if is_readable(root)]
    found = [_read(watched, root, of_frame) for root in models]
    if not any(each.owned for each in found) or matter(found):
        found = [_read(watched, root, of_process) for root in models]
    return found if any(each.owned for each in found) else []


def _read(watched: Watched, root: str, asked: str) -> Owners:
    if (told := value(watched, of_model(asked, root))) is None:
        raise SilentError("What the optimizers train could not be read.", code="unseen")
    unowned, owned = told
    return Owners(root, _unwrapped(unowned), _unwrapped(owned))


def _unwrapped(names: Iterable[str]) -> list[str]:
    """As the tables have them."""
    return list(dict.fromkeys(".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in names))
