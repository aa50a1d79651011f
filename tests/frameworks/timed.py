"""Trainings by frameworks, validated now and then, with clocks of their own around each phase.

    python timed.py STYLE TIMES_FILE [--pauses]

--pauses: validations take seconds, and after every 40 steps it compiles or saves for as long.
One JSON array a step goes to TIMES_FILE with the next batch: [step, data, forward, backward, validation,
optimizer] in seconds, steps from 0.  The work naps, as that of tests/targets/phased.py does.
"""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "targets"))

import pausing
import phased
import torch
from torch import nn
from torch.utils.data import DataLoader
from trainers import lightning_trainer

STEPS = 5_000
EVERY = 10  # steps between two validations
PAUSE_S = 4.0
PAUSES = "--pauses" in sys.argv
STYLES = {}
clock = phased.Clock()
untold = []  # steps that are not in the file yet


def style(train):
    STYLES[train.__name__] = train
    return train


class Data(phased.Slow):
    def __init__(self, batches):
        super().__init__(phased.NAPS["data"])
        self.batches = batches

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        while untold:
            times.write(json.dumps(untold.pop(0)) + "\n")
        return super().__getitem__(index)


def validation_data():
    return Data(200 if PAUSES else 2)


class Model(nn.Module):
    """Forward in training, or validation, by its mode; a batch comes as Hugging Face gives it, too."""

    def __init__(self):
        super().__init__()
        self.inner = phased.Model()

    def __call__(self, *args, **kwargs):
        return clock("forward" if self.training else "validation", super().__call__, *args, **kwargs)

    def forward(self, x):
        return {"loss": self.inner(x)}


class Optimizer(phased.Sleepy):
    """Its clock is outside of the hooks that torch puts around the step of a class with its first instance."""

    steps = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        inner = type(self).step

        def step(self, closure=None):
            result = clock("optimizer", inner, self, closure)
            untold.append([Optimizer.steps, *clock.spent.values()])
            Optimizer.steps += 1
            clock.spent = dict.fromkeys(phased.NAPS, 0.0)
            if PAUSES and Optimizer.steps % 40 == 0:
                (pausing.compile if Optimizer.steps % 80 else pausing.save)(nn.Linear(8, 8), PAUSE_S)
            if self.steps == 12:
                print(f"ready {os.getpid()}", flush=True)
            return result

        Optimizer.step = step


def timed(owner, name, phase):
    """The method takes its time on the clock from now on."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: clock(phase, original, *args, **kwargs))


def loaders():
    return DataLoader(Data(STEPS), batch_size=None), DataLoader(validation_data(), batch_size=None)


@style
def transformers():
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=1, per_device_eval_batch_size=1, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, eval_strategy="steps", eval_steps=EVERY,
            remove_unused_columns=False, dataloader_num_workers=0, logging_strategy="no",
        )  # fmt: skip
        model = Model()
        trainer = Trainer(
            model, arguments, train_dataset=Data(STEPS), eval_dataset=validation_data(),
            data_collator=lambda rows: {"x": rows[0]},
            optimizers=(Optimizer(model.parameters(), lr=1e-3), None),
        )  # fmt: skip
        trainer.train()


@style
def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Model()
    model, optimizer, train, validation = accelerator.prepare(model, Optimizer(model.parameters(), lr=1e-3), *loaders())
    for number, x in enumerate(train):
        accelerator.backward(model(x)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        if number % EVERY == 0:
            model.eval()
            with torch.no_grad():
                for x in validation:
                    model(x)
            model.train()


@style
def lightning(manual=False):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.automatic_optimization = Model(), not manual

        def training_step(self, x):
            loss = self.net(x)["loss"]
            if not manual:
                return loss
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return None

        def validation_step(self, x):
            self.net(x)

        def configure_optimizers(self):
            return Optimizer(self.parameters(), lr=1e-3)

    lightning_trainer(max_steps=STEPS, val_check_interval=EVERY).fit(Module(), *loaders())


@style
def lightning_manual():
    lightning(manual=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    timed(torch.Tensor, "backward", "backward")
    timed(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", "data")
    timed(DataLoader, "__iter__", "data")
    with open(sys.argv[2], "w", buffering=1) as times:
        STYLES[sys.argv[1]]()
