"""Rules on the training loop, on planted rows of jobs in which a trainer has the loop; their own code only calls it."""

from __future__ import annotations

from collections.abc import Iterable

from planted import Planted

from probe.diagnose.rule import Finding
from probe.diagnose.rules.loop.checkpoint_stall import CHECKPOINT_STALL
from probe.diagnose.rules.loop.periodic_stall import PERIODIC_STALL
from probe.diagnose.rules.loop.validation_heavy import VALIDATION_HEAVY

STEPS = range(1, 201)
FIT = ("fit (train.py:5)", "Trainer._run (trainers/t.py:99)")
EVERY = STEPS[19::20]


def training(*stacks: tuple[str | None, float, tuple[str, ...]]) -> Planted:
    """Steps of 100 ms, after every twentieth of which the trainer takes 400 ms more for these."""
    planted = Planted().steps(200, noise=0.02, extra=dict.fromkeys(EVERY, 400), forward=40, backward=60)
    planted.profile(("forward", 0.04, (*FIT, "forward (net.py:3)")), ("backward", 0.06, FIT), steps=STEPS)
    return planted.profile(*stacks, steps=EVERY)


def one(findings: Iterable[Finding]) -> Finding:
    (found,) = findings
    return found


def test_checkpoints_are_in_a_function_of_the_trainer_not_where_that_is_called() -> None:
    save = (*FIT, "Trainer._maybe_save (trainers/t.py:9)", "Trainer.save_model (trainers/t.py:7)")
    found = one(CHECKPOINT_STALL.find(training(("other", 0.4, save)).watched()))
    assert found.where == "Trainer.save_model (trainers/t.py:7)"


def test_a_callback_that_also_removes_the_last_checkpoint_does_nothing_but_save() -> None:
    callback = (*FIT, "ModelCheckpoint._save_topk_checkpoint (callbacks/checkpoint.py:9)")
    save = ("other", 0.3, (*callback, "Trainer.save_checkpoint (trainers/t.py:3)"))
    watched = training(save, ("other", 0.1, (*callback, "_remove (callbacks/checkpoint.py:7)"))).watched()
    assert one(CHECKPOINT_STALL.find(watched)).sentence.endswith("400 ms every 20 steps.")
    assert not list(PERIODIC_STALL.find(watched))


def test_a_callback_of_a_library_is_called_by_its_name() -> None:
    monitor = (*FIT, "_call_hooks (trainers/call.py:3)", "Monitor.on_train_batch_end (trainers/m.py:9)")
    found = one(PERIODIC_STALL.find(training(("other", 0.4, monitor)).watched()))
    assert found.sentence.startswith("Periodic stall: Monitor.on_train_batch_end takes 400 ms every 20 steps")


EVALUATE = (*FIT, "Trainer._evaluate (trainers/t.py:9)", "Trainer.evaluate (trainers/t.py:5)")


def evaluating(*stacks: tuple[str | None, float, tuple[str, ...]]) -> Planted:
    of = {"stage": "forward", "depth": 0, "recompute": False, "step": 20, "root": "model", "total_host_duration": 0.1}
    calls = [{**of, "training": training, "grad": training} for training in (True, False)]
    return training(*stacks).plant("python.torch_trace", calls)


def test_validation_is_in_a_function_of_the_trainer_too() -> None:
    planted = evaluating(("validation", 0.4, (*EVALUATE, "forward (net.py:3)")))
    found = one(VALIDATION_HEAVY.find(planted.watched()))
    assert found.sentence == "Validation-heavy: 17 % of the time goes into Trainer.evaluate, 400 ms every 20 steps."


def test_what_the_trainer_does_in_its_validation_is_a_part_of_it() -> None:
    planted = evaluating(("validation", 0.2, (*EVALUATE, "forward (net.py:3)")))
    planted.profile(("other", 0.2, (*EVALUATE, "log (trainers/log.py:9)")), steps=EVERY, holds_gil=True)
    found = one(VALIDATION_HEAVY.find(planted.watched()))
    assert found.sentence == "Validation-heavy: 17 % of the time goes into Trainer.evaluate, 400 ms every 20 steps."
