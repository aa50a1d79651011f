"""Jobs that Lightning trains, by automatic and by manual optimisation: `by_lightning.py JOB`."""

import warnings

import torch
from families import CNN, MLP, Batches, UNet, WithTable, gan
from job import ready, run, sgd
from lightning import pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from loading import Shards, Stored
from torch.utils.data import DataLoader


class Module(pl.LightningModule):
    """A model of the zoo."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def on_train_start(self):
        ready()

    def training_step(self, batch):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        self.log("validation_loss", self.loss(batch))

    def loss(self, batch):
        inputs, targets = batch
        return self.model.loss(self.model(inputs), targets)

    def configure_optimizers(self):
        return sgd(self.model)


def fit(module, *loaders, **options):
    """Without end, and without progress on the screen."""
    warnings.simplefilter("ignore")
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(accelerator="cpu", max_epochs=-1, num_sanity_val_steps=0, **off | options)
    trainer.fit(module, *loaders)


def batches(model, size, count=1 << 20):
    return DataLoader(Batches(model, size, count), batch_size=None)


def input_bound_lightning():
    model = CNN()
    fit(Module(model), DataLoader(Stored(model, 0.005), batch_size=16, shuffle=True))


def validating(every, count):
    model = CNN()
    fit(Module(model), batches(model, 16), batches(model, 16, count), val_check_interval=every)


def validation_heavy_lightning():
    validating(20, 60)


def healthy_lightning_validates():
    """About 5 % of the time, and it logs in each step."""
    validating(100, 15)


def saving(millions, every):
    model = WithTable(UNet(), millions)
    checkpoint = ModelCheckpoint(".", every_n_train_steps=every)
    fit(Module(model), batches(model, 16), callbacks=[checkpoint], enable_checkpointing=True)


def checkpoint_stall_lightning():
    saving(40, 5)


def healthy_lightning_saves():
    """Each five hundred steps."""
    saving(10, 500)


class Remembering(Module):
    """Keeps losses of held-out samples for the log, and with each of them its graph."""

    def __init__(self, model):
        super().__init__(model)
        self.held_out, self.held_out_losses = model.batch(4), []

    def training_step(self, batch):
        self.held_out_losses.append(self.loss(self.held_out))
        return super().training_step(batch)


def memory_creep_lightning():
    model = CNN()
    fit(Remembering(model), batches(model, 16))


def small_batch_lightning():
    model = MLP(16, 250)
    fit(Module(model), batches(model, 2))


class Adversarial(pl.LightningModule):
    """A generator and a discriminator that take turns, by manual optimisation."""

    def __init__(self, turns, detached):
        super().__init__()
        self.generator, self.discriminator = gan()
        self.turns, self.detached, self.automatic_optimization = turns, detached, False

    def on_train_start(self):
        ready()

    def training_step(self, batch):
        noise, real = batch
        generator_optimizer, discriminator_optimizer = self.optimizers()
        for _ in range(self.turns):
            fake = self.generator(noise)
            judged = self.discriminator(fake.detach() if self.detached else fake)
            self.improve(discriminator_optimizer, judged.mean() - self.discriminator(real).mean())
        self.improve(generator_optimizer, -self.discriminator(self.generator(noise)).mean())

    def improve(self, optimizer, loss):
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self):
        return sgd(self.generator), sgd(self.discriminator)


class Pictures:
    """Noise, and what pictures there are."""

    def batch(self, count):
        return torch.randn(count, 64), torch.randn(count, 768)


def frozen_with_gradients_lightning():
    """The discriminator's pass goes back through the generator, whose gradients are thrown away."""
    fit(Adversarial(5, detached=False), batches(Pictures(), 64))


def healthy_lightning_gan():
    fit(Adversarial(1, detached=True), batches(Pictures(), 192))


def healthy_lightning_workers():
    """Workers that keep up."""
    model = CNN()
    fit(Module(model), DataLoader(Shards(model, 0.01, 1 << 20), batch_size=None, num_workers=2))


if __name__ == "__main__":
    run(globals())
