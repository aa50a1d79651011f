"""The job's own number of steps where the optimizer keeps none: that of a trainer, or of a learning-rate scheduler.

Made by step_count.py at the first boundary, from the variables of the frames on the training thread, and asked at the
next ones.  The one invariant: a number is believed only after it grew by exactly one from each boundary to the next; a
scheduler that is stepped once an epoch, or a trainer that counts two optimizers, is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from weakref import ref

from ..names.namespace import PACKAGES, USERS, whose
from ..names.variable_names import outward, parts_of, readable, variables

TRAINER, SCHEDULER = "trainer", "scheduler"
_GROWTHS = 2  # in a row: one alone may be the end of an epoch
_HUGGING_FACE = ("transformers.trainer", "Trainer")
_LIGHTNING = {
    ("lightning.pytorch.trainer.trainer", "Trainer"),
    ("pytorch_lightning.trainer.trainer", "Trainer"),
}
_LR_SCHEDULER = ("torch.optim.lr_scheduler", "LRScheduler")

Read = Callable[[], "int | None"]  # steps completed before the one that ends now


class TrainerStep:
    """boundary() at each boundary while `pending`; then base and source, if a number is believed."""

    def __init__(self, frame: FrameType | None, optimizer: Any, count: int) -> None:
        self.base: int | None = None
        self.source = ""
        self._first = count
        try:
            found = [(source, read, read()) for source, read in _found(frame, optimizer)]
        except Exception:  # a variable came while we looked; inside a user's optimizer step nothing may escape
            found = []
        self._left = [(source, read, number - count) for source, read, number in found if number is not None]

    @property
    def pending(self) -> bool:
        return bool(self._left) and self.base is None

    def boundary(self, count: int) -> None:
        """The step of this count ends: those whose number has not grown with it are out."""
        self._left = [(source, read, base) for source, read, base in self._left if read() == base + count]
        if count < self._first + _GROWTHS:
            return
        for source in (TRAINER, SCHEDULER):
            bases = {base for its, _, base in self._left if its == source}
            if len(bases) == 1:
                self.base, self.source = bases.pop(), source
                break
        self._left = []


def _found(frame: FrameType | None, optimizer: Any) -> list[tuple[str, Read]]:
    """What may know the number; a scheduler that is a part of another one counts only its own time."""
    things = list(_things(frame)) if readable() else []
    trainers = {id(thing): thing for thing in things if _is_trainer(thing)}
    schedulers = {id(thing): thing for thing in things if _schedules(thing, optimizer)}
    for outer in list(schedulers.values()):
        for part in vars(outer).get("_schedulers", ()):
            schedulers.pop(id(part), None)
    return [
        *((TRAINER, _reader(thing, _trainers)) for thing in trainers.values()),
        *((SCHEDULER, _reader(thing, _schedulers)) for thing in schedulers.values()),
    ]


def _things(frame: FrameType | None) -> Iterator[Any]:
    """What variables hold, and one level deep what those hold."""
    frames = [each for each in outward(frame) if whose(each) in (USERS, PACKAGES)]
    frames = [each for each in frames if each.f_globals.get("__package__") != __package__]
    spaces = [variables(each) for each in frames]
    for space in [*spaces, *{id(each.f_globals): each.f_globals for each in frames}.values()]:
        for name, value in list(space.items()):
            if not name.startswith("__"):
                yield value
                yield from (held for _, held in parts_of(value))


def _lineage(thing: Any) -> set[tuple[str, str]]:
    return {(each.__module__, each.__qualname__) for each in type(thing).__mro__}


def _is_trainer(thing: Any) -> bool:
    return type(thing).__flags__ & _HEAP != 0 and bool(_lineage(thing) & {_HUGGING_FACE, *_LIGHTNING})


def _schedules(thing: Any, optimizer: Any) -> bool:
    if type(thing).__flags__ & _HEAP == 0 or _LR_SCHEDULER not in _lineage(thing):
        return False
    return vars(thing).get("optimizer") is optimizer


_HEAP = 1 << 9  # flag of a class that is made by a class statement


def _reader(thing: Any, number_of: Callable[[Any], Any]) -> Read:
    alive = ref(thing)

    def read() -> int | None:
        try:
            number = number_of(alive())
        except Exception:  # a trainer of a version that we do not know, or one that is gone
            return None
        return number if type(number) is int else None

    return read


def _trainers(trainer: Any) -> Any:
    """Both count a step when its optimizer is through, which is after the boundary."""
    return trainer.state.global_step if _HUGGING_FACE in _lineage(trainer) else trainer.global_step


def _schedulers(scheduler: Any) -> Any:
    """Steps of the scheduler, which follow those of the optimizer; `last_epoch` is what a resumed job goes on from."""
    return vars(scheduler)["last_epoch"]
