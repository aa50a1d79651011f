"""A step's number comes from the trainer or scheduler if the optimizer keeps none and theirs grows by one per step.

PYTEST_DONT_REWRITE: a rewritten assert calls locals(), and up to 3.12 the agent leaves frames that do so alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from preempting import Preempted, preempt, preempting  # noqa: E402
from tapped import Taps, tapped  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

Numbered = tuple[str, int]


@pytest.fixture
def taps() -> Iterator[Taps]:
    with tapped() as made:
        yield made


def made() -> Any:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.zeros(2)
    return torch.optim.SGD([weight], lr=0.1)


def numbered(taps: Taps) -> Numbered:
    """The source of the number, and the number of the step that ended last."""
    assert taps.steps.trainer_step is None
    return taps.steps.source, taps.steps.base + taps.steps.count - 1


def resumed(scheduler: Any, done: int) -> Any:
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": done, "_step_count": done + 1})
    return scheduler


def run(optimizer: Any, after: Callable[[], object], steps: int = 5) -> None:
    for _ in range(steps):
        optimizer.step()
        after()


def test_a_scheduler_stepped_at_each_step_gives_the_number(taps: Taps) -> None:
    optimizer = made()
    scheduler = resumed(lr_scheduler.CosineAnnealingLR(optimizer, 10_000), 1000)
    run(optimizer, scheduler.step)
    assert numbered(taps) == ("scheduler", 1004)  # steps 1000 to 1004 have ended, the first is 0


@pytest.mark.parametrize("times", [1, 3], ids=["while it is found", "while it is read"])
def test_what_a_signal_handler_raises_while_a_scheduler_is_looked_at_reaches_the_job(taps: Taps, times: int) -> None:
    looks: list[str] = []

    class Scheduler(lr_scheduler.StepLR):
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__" and sys._getframe(1).f_code.co_filename.endswith("trainer_step.py"):
                looks.append(name)
                if len(looks) == times:
                    preempt()
            return super().__getattribute__(name)

    optimizer = made()
    scheduler = Scheduler(optimizer, 10)
    with preempting(), pytest.raises(Preempted):
        run(optimizer, scheduler.step)


def test_a_scheduler_held_as_an_attribute_is_found_too(taps: Taps) -> None:
    class Training:
        def __init__(self) -> None:
            self.optimizer = made()
            self.scheduler = resumed(lr_scheduler.StepLR(self.optimizer, 10), 70)

        def run(self) -> None:
            run(self.optimizer, self.scheduler.step)

    Training().run()
    assert numbered(taps) == ("scheduler", 74)


def test_a_scheduler_stepped_per_epoch_is_not_accepted_wherever_the_attach_falls(taps: Taps) -> None:
    optimizer = made()
    scheduler = resumed(lr_scheduler.StepLR(optimizer, 10), 7)
    run(optimizer, scheduler.step, 1)  # the end of an epoch
    run(optimizer, lambda: None, 5)
    assert numbered(taps) == ("attach", 5)


def test_a_scheduler_of_another_optimizer_is_not_read(taps: Taps) -> None:
    optimizer, other = made(), made()
    scheduler = resumed(lr_scheduler.StepLR(other, 10), 7)
    run(optimizer, lambda: setattr(scheduler, "last_epoch", scheduler.last_epoch + 1))
    assert numbered(taps) == ("attach", 4)


def test_schedulers_inside_a_chain_count_only_their_own_time(taps: Taps) -> None:
    optimizer = made()
    warmup = lr_scheduler.LinearLR(optimizer)
    main = lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    both = lr_scheduler.SequentialLR(optimizer, [warmup, main], milestones=[5])
    taps.remove()
    run(optimizer, both.step, 50)
    taps.install()
    run(optimizer, both.step)
    assert numbered(taps) == ("scheduler", 54) and main.last_epoch == 50


def test_two_schedulers_that_disagree_are_not_accepted(taps: Taps) -> None:
    optimizer = made()
    one, other = (resumed(lr_scheduler.StepLR(optimizer, 10), done) for done in (70, 700))
    run(optimizer, lambda: (one.step(), other.step()))
    assert numbered(taps) == ("attach", 4)


def trainer_class(module: str) -> Any:
    """A class that goes by the name of a framework's trainer."""
    return type("Trainer", (), {"__module__": module, "__doc__": None})


class State:
    global_step = 0


@pytest.mark.parametrize("subclassed", [False, True])
def test_hugging_faces_trainer_gives_the_number(taps: Taps, subclassed: bool) -> None:
    kind = trainer_class("transformers.trainer")
    trainer = (type("Mine", (kind,), {}) if subclassed else kind)()
    trainer.state, trainer.optimizer = State(), made()
    trainer.state.global_step = 300

    def train(self: Any) -> None:
        scheduler = resumed(lr_scheduler.StepLR(self.optimizer, 10), 7)

        def after() -> None:
            self.state.global_step += 1
            scheduler.step()

        run(self.optimizer, after)

    train(trainer)
    assert numbered(taps) == ("trainer", 304)


@pytest.mark.parametrize("module", ["lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"])
def test_lightnings_trainer_gives_the_number(taps: Taps, module: str) -> None:
    trainer, optimizer = trainer_class(module)(), made()
    trainer.global_step = 40
    run(optimizer, lambda: setattr(trainer, "global_step", trainer.global_step + 1))
    assert numbered(taps) == ("trainer", 44)


def test_a_trainer_that_counts_two_optimizers_is_not_accepted(taps: Taps) -> None:
    trainer, optimizer = trainer_class("lightning.pytorch.trainer.trainer")(), made()
    trainer.global_step = 40
    run(optimizer, lambda: setattr(trainer, "global_step", trainer.global_step + 2))
    assert numbered(taps) == ("attach", 4)


def test_a_trainer_that_raises_costs_the_job_nothing(taps: Taps) -> None:
    def fails(self: Any) -> int:
        raise SystemError("not now")

    kind = trainer_class("lightning.pytorch.trainer.trainer")
    kind.global_step = property(fails)
    trainer, optimizer = kind(), made()
    run(optimizer, lambda: None)
    assert numbered(taps) == ("attach", 4) and trainer is not None


def test_the_optimizers_own_count_takes_precedence(taps: Taps) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.zeros(2)
    optimizer = torch.optim.AdamW([weight])
    scheduler = resumed(lr_scheduler.StepLR(optimizer, 10), 70)
    optimizer.step()
    scheduler.step()
    assert numbered(taps) == ("optimizer", 0)


@pytest.mark.parametrize(("done", "expected"), [(0, ("attach", 7)), (100, ("scheduler", 104))])
def test_where_passes_ended_the_first_steps_no_number_of_theirs_is_given_again(
    taps: Taps, done: int, expected: Numbered
) -> None:
    optimizer = made()
    scheduler = resumed(lr_scheduler.StepLR(optimizer, 10), done)
    taps.steps.by_pass = True
    for _ in range(3):
        optimizer.param_groups[0]["params"][0].sum().backward()
    run(optimizer, scheduler.step)
    assert numbered(taps) == expected


def test_inspected_objects_are_not_kept_alive(taps: Taps) -> None:
    optimizer = made()
    scheduler = lr_scheduler.StepLR(optimizer, 10)
    optimizer.step()
    assert taps.steps.trainer_step is not None
    before = sys.getrefcount(scheduler)
    run(optimizer, scheduler.step)
    assert taps.steps.trainer_step is None and sys.getrefcount(scheduler) == before
