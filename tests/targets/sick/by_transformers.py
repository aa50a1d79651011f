"""Jobs that Hugging Face's Trainer trains, a GPT-2 without pretrained weights: `by_transformers.py JOB`."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from job import ready, run
from loading import Tokenize
from pausing import log_histograms
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

VOCABULARY, LENGTH = 256, 48


class Texts(Dataset):
    """Random words."""

    def __init__(self, count=1 << 20):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        words = torch.randint(VOCABULARY, (LENGTH,))
        return {"input_ids": words, "labels": words}


class Callback(TrainerCallback):
    def on_train_begin(self, *_, **__):
        ready()


def gpt2():
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=96, n_layer=2, n_head=4, **ends))


def fit(model=None, callback=None, collate=None, texts=None, held_out=0, size=8, **arguments):
    """Without end.  callback: told of each step; held_out: batches to evaluate on."""
    usual = {"save_strategy": "no", "logging_steps": 50, "per_device_eval_batch_size": 8, "max_steps": 1 << 40}
    chosen = TrainingArguments(
        ".", use_cpu=True, report_to=[], disable_tqdm=True, per_device_train_batch_size=size, **usual | arguments
    )
    data = texts or Texts(), Texts(8 * held_out) if held_out else None
    trainer = Trainer(model or gpt2(), chosen, collate, *data, callbacks=[callback or Callback()])
    trainer.train()


class Tokenized(Tokenize):
    """A batch as Hugging Face's models take it."""

    def __init__(self, repeats):
        super().__init__(self, repeats)

    def batch(self, count):
        words = torch.randint(VOCABULARY, (count, LENGTH))
        return {"input_ids": words, "labels": words}


def input_bound_transformers():
    fit(collate=Tokenized(60), texts=Texts(512))


def validation_heavy_transformers():
    fit(eval_strategy="steps", eval_steps=20, held_out=60)


def healthy_transformers_evaluates():
    """About 5 % of the time."""
    fit(eval_strategy="steps", eval_steps=100, held_out=15)


def with_table(millions):
    """A model with a table of so many million numbers that it does not train."""
    model = gpt2()
    model.register_buffer("table", torch.zeros(millions, 1_000_000))
    return model


def checkpoint_stall_transformers():
    fit(with_table(40), save_strategy="steps", save_steps=5, save_total_limit=1)


def healthy_transformers_saves():
    fit(with_table(5), save_strategy="steps", save_steps=500, save_total_limit=1)


class Histograms(Callback):
    """Each four steps, one for each parameter, in Python."""

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step % 4 == 0:
            log_histograms(model)


def periodic_stall_transformers():
    fit(callback=Histograms())


class Confusions(Callback):
    """What was right and wrong of each class, counted in Python after each step."""

    scores = torch.rand(250, 10).tolist()

    def on_step_end(self, args, state, control, **_):
        self.count_confusions(state.global_step)

    def count_confusions(self, step):
        counts = [[0] * 10 for _ in range(10)]
        for _ in range(120):
            for row in self.scores:
                counts[row.index(max(row))][step % 10] += 1


def python_outside_model_transformers():
    fit(callback=Confusions())


def healthy_transformers_accumulates():
    """Two micro-batches a step, a log line each five steps; gradients are clipped, and the rate is scheduled."""
    fit(size=16, gradient_accumulation_steps=2, logging_steps=5)


if __name__ == "__main__":
    run(globals())
