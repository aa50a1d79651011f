"""The job's own step number if the optimizer keeps none: a trainer's, or a learning-rate scheduler's.

step_count.py makes a TrainerStep at the first boundary, from variables of the frames on the training thread, and calls
it at the next ones.  Invariant: a number is accepted only after it grew by exactly one from each boundary to the next,
which rules out a scheduler stepped once per epoch and a trainer that counts two optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from weakref import ref

from ..inspect.frames import is_ours, outward
from ..job_signals import raised_by_handler
from ..names.namespace import PACKAGES, USERS, code_owner
from ..names.variable_names import MAX_FRAMES, parts_of, readable, variables

TRAINER, SCHEDULER = "trainer", "scheduler"
_MIN_GROWTHS = 2  # in a row: a single one may be the end of an epoch
_HUGGING_FACE = ("transformers.trainer", "Trainer")
_LIGHTNING = ("lightning.pytorch.trainer.trainer", "Trainer"), ("pytorch_lightning.trainer.trainer", "Trainer")
_LR_SCHEDULER = ("torch.optim.lr_scheduler", "LRScheduler")
_HEAP_TYPE = 1 << 9  # flag of classes made by a class statement

Read = Callable[[], "int | None"]  # steps completed before the one that ends now


class TrainerStep:
    """Call boundary() at each boundary while `pending`; base and source are then set if a number is accepted.

    first: the count of the step in which it was made.
    """

    def __init__(self, frame: FrameType | None, optimizer: Any, count: int) -> None:
        self.base: int | None = None
        self.source = ""
        self.first = count
        try:
            found = [(source, read, read()) for source, read in _sources(frame, optimizer)]
        except Exception as error:  # a variable appeared meanwhile; nothing may escape into a user's optimizer step
            if raised_by_handler(error):
                raise
            found = []
        self._candidates = [(source, read, number - count) for source, read, number in found if number is not None]

    @property
    def pending(self) -> bool:
        return bool(self._candidates) and self.base is None

    def boundary(self, count: int) -> None:
        """The step of this count ends: drop candidates whose number has not grown with it."""
        self._candidates = [(source, read, base) for source, read, base in self._candidates if read() == base + count]
        if count < self.first + _MIN_GROWTHS:
            return
        for source in (TRAINER, SCHEDULER):
            bases = {base for its, _, base in self._candidates if its == source}
            if len(bases) == 1:
                self.base, self.source = bases.pop(), source
                break
        self._candidates = []


def _sources(frame: FrameType | None, optimizer: Any) -> list[tuple[str, Read]]:
    """Trainers and schedulers that may hold the number; schedulers inside another one count only their own time."""
    objects = list(_objects(frame)) if readable() else []
    trainers = {id(candidate): candidate for candidate in objects if _is_a(candidate, _HUGGING_FACE, *_LIGHTNING)}
    schedulers = {
        id(candidate): candidate
        for candidate in objects
        if _is_a(candidate, _LR_SCHEDULER) and vars(candidate).get("optimizer") is optimizer
    }
    for outer in list(schedulers.values()):
        for part in vars(outer).get("_schedulers", ()):
            schedulers.pop(id(part), None)
    return [
        *((TRAINER, _reader(candidate, _trainer_steps)) for candidate in trainers.values()),
        *((SCHEDULER, _reader(candidate, _scheduler_steps)) for candidate in schedulers.values()),
    ]


def _objects(frame: FrameType | None) -> Iterator[Any]:
    """Objects held by variables, and the objects one level deep inside those."""
    frames = [each for each in outward(frame, MAX_FRAMES) if code_owner(each) in (USERS, PACKAGES)]
    frames = [each for each in frames if not is_ours(each)]
    spaces = [variables(each) for each in frames]
    for space in [*spaces, *{id(each.f_globals): each.f_globals for each in frames}.values()]:
        for name, value in list(space.items()):
            if not name.startswith("__"):
                yield value
                yield from (held for _, held in parts_of(value))


def _is_a(candidate: Any, *classes: tuple[str, str]) -> bool:
    """Whether one of these classes is in its lineage."""
    if not type(candidate).__flags__ & _HEAP_TYPE:
        return False
    return any((each.__module__, each.__qualname__) in classes for each in type(candidate).__mro__)


def _reader(candidate: Any, number_of: Callable[[Any], Any]) -> Read:
    alive = ref(candidate)

    def read() -> int | None:
        try:
            number = number_of(alive())
        except Exception as error:  # a trainer of an unknown version, or one that no longer exists
            if raised_by_handler(error):
                raise
            return None
        return number if type(number) is int else None

    return read


def _trainer_steps(trainer: Any) -> Any:
    """Both trainers count a step after its optimizer has finished, which is after the boundary."""
    return trainer.state.global_step if _is_a(trainer, _HUGGING_FACE) else trainer.global_step


def _scheduler_steps(scheduler: Any) -> Any:
    """The scheduler's steps, which follow the optimizer's; a resumed job continues from `last_epoch`."""
    return vars(scheduler)["last_epoch"]
