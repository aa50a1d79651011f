"""Training by Hugging Face's Trainer, accelerate and Lightning, each told as the loops of loops.py are."""

import torch
from loops import STEPS, batch, net, style
from torch.utils.data import DataLoader


@style
def transformers(stepped, accumulate=1, **options):
    """A GPT-2 of one layer under Hugging Face's Trainer, which brings accelerate."""
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Stepped(TrainerCallback):
        def on_step_end(self, args, state, control, **rest):
            stepped(state.global_step)

    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    tokens = torch.randint(0, 64, (STEPS * 4 * accumulate, 8), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=accumulate,
            use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, seed=0, **options,
        )  # fmt: skip
        data = [{"input_ids": row, "labels": row} for row in tokens]
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Stepped()])
        trainer.train()
    return model


@style
def transformers_accumulation(stepped):
    return transformers(stepped, accumulate=2)


@style
def transformers_sgd(stepped):
    return transformers(stepped, accumulate=2, optim="sgd")


@style
def accelerate(stepped):
    """A plain loop over what Accelerator prepared."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = net()
    model, optimizer, data = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.01), DataLoader(list(map(batch, range(2 * STEPS))), None)
    )
    for number, x in enumerate(data, 1):
        with accelerator.accumulate(model):
            accelerator.backward(model(x).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
        if number % 2 == 0:
            stepped(number // 2)
    return model


def lightning_trainer(**options):
    """Lightning's Trainer on the CPU, which writes and shows nothing."""
    import lightning.pytorch as pl

    return pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip


@style
def lightning(stepped, manual=False, optimizer=torch.optim.AdamW):
    import warnings

    import lightning.pytorch as pl

    warnings.simplefilter("ignore")

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.automatic_optimization = net(), not manual

        def training_step(self, x, number):
            loss = self.net(x).pow(2).mean()
            if not manual:
                return loss
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return None

        def on_train_batch_end(self, *rest):
            stepped(self.trainer.global_step)

        def configure_optimizers(self):
            return optimizer(self.parameters(), lr=0.01)

    model = Model()
    lightning_trainer(max_steps=STEPS).fit(model, DataLoader(list(map(batch, range(STEPS))), None))
    return model


@style
def lightning_manual(stepped):
    return lightning(stepped, manual=True)


@style
def lightning_sgd(stepped):
    return lightning(stepped, optimizer=torch.optim.SGD)
