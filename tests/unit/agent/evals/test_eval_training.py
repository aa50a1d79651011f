"""Training by eval: `train_step()` ten times gives the very weights of ten steps more, however the loop is written."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from probe.agent.boundary.boundary import Boundary  # noqa: E402
from probe.agent.evals.evaluation import Evaluation  # noqa: E402
from probe.agent.names.modules import Modules  # noqa: E402
from probe.agent.steps.sample_count import SampleCount  # noqa: E402
from probe.agent.storage.log import Log  # noqa: E402
from probe.agent.storage.rows import Stream  # noqa: E402
from probe.agent.taps.loader import Loader  # noqa: E402
from probe.streams import LOADS, SPANS, STREAMS  # noqa: E402

STEPS = 10  # of the loop itself
BY_EVAL = 10
ASKED = 4


class Session:
    """The boundary and one snippet at it, put into torch as the agent does."""

    def __init__(self, code: str, count: int = -1) -> None:
        self.done: dict[str, Any] = {}
        self.frame = ""
        self._faults: list[Exception] = []
        self._log, self._spans = Log(), Stream(SPANS, STREAMS[SPANS], retention_bytes=1)
        self._evaluation = Evaluation(
            code=code, filename="<eval>", write=True, send=self._send, log=self._log, spans=self._spans, own={}
        )
        self._boundary, self._count, self._anchor = Boundary(), 0, 0
        self._at = count
        self._loads, self._modules = Stream(LOADS, STREAMS[LOADS], retention_bytes=1), Modules(self._log)
        context: Any = SimpleNamespace(
            streams={LOADS: self._loads},
            modules=self._modules,
            boundary=self._boundary,
            steps=SimpleNamespace(samples=SampleCount()),
            reporter=lambda name: self._faults.append,
        )
        self._tap = Loader(context)

    def _send(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "done":
            self.done = fields

    def __enter__(self) -> Session:
        self._tap.install()
        self._hook = register_optimizer_step_post_hook(self._stepped)
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()
        self._tap.remove()
        self._boundary.close()
        self._log.close()
        self._spans.close()
        self._loads.close()
        self._modules.close()
        assert not self._faults and not self._boundary.trouble and sys.gettrace() is None

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._anchor = self._anchor or id(optimizer)
        if id(optimizer) != self._anchor:
            return
        self._count += 1
        if self._count == ASKED:
            self._boundary.request(self._run, self._at)
        self._boundary.stepped(self._count)

    def _run(self, frame: Any) -> None:
        self.frame = frame.f_code.co_name
        self._evaluation.run_at(frame, self._count)


def data(batch_size: int = 4) -> Any:
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(400, 8), torch.randn(400, 2)), batch_size=batch_size)


class Trainer:
    """A step of everything that may be half done in an optimizer's post-hook."""

    accumulate = 1
    scaled = False
    zero_first = False

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.scaled, init_scale=256.0, growth_interval=3)
        self.batches = iter(data())

    def train_step(self) -> float:
        return self.on_batch(next(self.batches)) if self.accumulate == 1 else self.on_several()

    def on_several(self) -> float:
        loss = 0.0
        for _ in range(self.accumulate):
            loss = self.backward(next(self.batches))
        self.update()
        return loss

    def on_batch(self, batch: Any) -> float:
        if self.zero_first:
            self.optimizer.zero_grad()
        loss = self.backward(batch)
        self.update()
        return loss

    def backward(self, batch: Any) -> float:
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y) / self.accumulate
        self.scaler.scale(loss).backward()
        return float(loss.detach())

    def update(self) -> None:
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not self.zero_first:
            self.optimizer.zero_grad()
        self.scheduler.step()

    def weights(self) -> list[float]:
        state = self.optimizer.state_dict()["state"].values()
        tensors = [*self.model.parameters(), *(value for values in state for value in values.values())]
        return torch.cat([tensor.detach().flatten().float() for tensor in tensors]).tolist()


class ZeroFirst(Trainer):
    zero_first = True


class Scaled(Trainer):
    scaled = True


class ScaledZeroFirst(Trainer):
    scaled = zero_first = True


class Accumulating(Trainer):
    accumulate = 3


class ScaledAccumulating(Trainer):
    accumulate, scaled = 3, True


# ---- loops that call trainer.train_step() or write it out


def called(trainer: Trainer, steps: int) -> None:
    for _ in range(steps):
        trainer.train_step()


def called_in_a_comprehension(trainer: Trainer, steps: int) -> None:
    [trainer.train_step() for _ in range(steps)]


def written_out(trainer: Trainer, steps: int) -> None:
    step = 0
    while step < steps:
        if trainer.zero_first:
            trainer.optimizer.zero_grad()
        for _ in range(trainer.accumulate):
            loss = trainer.backward(next(trainer.batches))
        trainer.scaler.unscale_(trainer.optimizer)
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.scaler.step(
            trainer.optimizer,
        )
        trainer.scaler.update()
        if not trainer.zero_first:
            trainer.optimizer.zero_grad()
        trainer.scheduler.step()
        step += 1
    assert loss


def with_micro_batches_in_one_loop(trainer: Trainer, steps: int) -> None:
    for _ in range(steps):
        if trainer.zero_first:
            trainer.optimizer.zero_grad()
        for micro in range(trainer.accumulate):
            trainer.backward(next(trainer.batches))
            if micro == trainer.accumulate - 1:
                trainer.scaler.unscale_(trainer.optimizer)
                nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
                trainer.scaler.step(trainer.optimizer)
                trainer.scaler.update()
        if not trainer.zero_first:
            trainer.optimizer.zero_grad()
        trainer.scheduler.step()


TRAINERS = (Trainer, ZeroFirst, Scaled, ScaledZeroFirst, Accumulating, ScaledAccumulating)
LOOPS = (called, called_in_a_comprehension, written_out, with_micro_batches_in_one_loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("trainer_type", TRAINERS)
def test_steps_made_by_eval_give_the_weights_of_as_many_more_steps(
    trainer_type: type[Trainer], loop: Callable[[Trainer, int], None]
) -> None:
    torch.manual_seed(0)
    reference = trainer_type()
    loop(reference, STEPS + BY_EVAL)

    torch.manual_seed(0)
    trainer = trainer_type()
    with Session(f"for i in range({BY_EVAL}):\n    trainer.train_step()") as session:
        loop(trainer, STEPS)
    assert session.done["ok"], session.done
    assert session.done["count"] == ASKED
    assert trainer.weights() == reference.weights()


def over_a_loader(trainer: Trainer, loader: Iterator[Any]) -> None:
    for batch in loader:
        trainer.on_batch(batch)


def in_c_over_a_loader(trainer: Trainer, loader: Iterator[Any]) -> None:
    deque(map(trainer.on_batch, loader), maxlen=0)


@pytest.mark.parametrize("loop", [over_a_loader, in_c_over_a_loader])
@pytest.mark.parametrize("trainer_type", [Trainer, ZeroFirst, Scaled, ScaledZeroFirst])
def test_a_snippet_takes_the_next_batch_and_the_loader_continues_after_it(
    trainer_type: type[Trainer], loop: Callable[[Trainer, Iterator[Any]], None]
) -> None:
    torch.manual_seed(0)
    reference = trainer_type()
    loop(reference, iter(data(batch_size=20)))

    torch.manual_seed(0)
    trainer = trainer_type()
    with Session(f"for i in range({BY_EVAL}):\n    trainer.on_batch(next(loader))") as session:
        loop(trainer, iter(data(batch_size=20)))
    assert session.done["ok"], session.done
    assert session.done["count"] == ASKED
    assert trainer.weights() == reference.weights()


def test_two_optimizers_that_step_in_turn_are_one_step() -> None:
    """As Muon beside AdamW: between their steps is no boundary."""

    def train(steps: int) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2))
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.05) for layer in model]
        batches = iter(data())

        def train_step() -> None:
            x, y = next(batches)
            nn.functional.mse_loss(model(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad()

        for _ in range(steps):
            x, y = next(batches)
            nn.functional.mse_loss(model(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad()
        assert train_step
        return [float(value.detach()) for parameter in model.parameters() for value in parameter.flatten()]

    reference = train(STEPS + BY_EVAL)
    with Session(f"for i in range({BY_EVAL}): train_step()") as session:
        weights = train(STEPS)
    assert session.done["ok"] and weights == reference


def test_a_step_on_another_thread_has_its_boundary_there() -> None:
    trainer, reference = Trainer(), Trainer()
    called(reference, STEPS + BY_EVAL)
    with Session(f"for i in range({BY_EVAL}): trainer.train_step()") as session:
        thread = threading.Thread(target=called, args=(trainer, STEPS))
        thread.start()
        thread.join()
    assert session.done["ok"] and len(trainer.weights()) == len(reference.weights())


def test_a_model_replaced_by_eval_is_the_one_that_trains_on() -> None:
    def train() -> Any:
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in data(batch_size=40):
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    with Session("import torch\nmodel = torch.nn.Sequential(model)") as session:
        model = train()
    assert isinstance(model, nn.Sequential)
    assert session.done["changed"] == ["train().model"]
