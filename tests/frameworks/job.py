"""Training by one framework or in one style, on a tiny model and made-up data: `job.py STYLE [FILE]`.

Prints "ready <pid> rank=<rank>" after ten steps of its own count and "final <rank> <steps> <hash of the weights>".
With FILE each step after the tenth takes 0.8 s more, until that file is there.
"""

import hashlib
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

STEPS = 60
HURRY = sys.argv[2] if len(sys.argv) > 2 else None
RANK = int(os.environ.get("RANK", "-1"))
global_step = 0  # what the job itself says


def stepped(step):
    """After each step of the job's own count."""
    global global_step
    global_step = step
    if step == 10:
        print(f"ready {os.getpid()} rank={max(RANK, 0)}", flush=True)
    if step >= 10 and HURRY is not None and not os.path.exists(HURRY):
        time.sleep(0.8)


def batch(number):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(number * 8 + max(RANK, 0)))


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def loop(model, optimizer, after=lambda: None):
    for step in range(STEPS):
        model(batch(step)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after()
        stepped(step + 1)
    return model


def one():
    model = net()
    return loop(model, torch.optim.AdamW(model.parameters(), lr=0.01))


def scheduler():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return loop(model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS).step)


def sgd_scheduler():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    return loop(model, optimizer, lambda: scheduler.step())


def accumulation():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        for micro in range(3):
            (model(batch(3 * step + micro)).pow(2).mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
        stepped(step + 1)
    return model


def scaler():
    """Every seventh gradient is infinite: the scaler does not step the optimizer, and the job does not count it."""
    model, scale, step, number = net(), torch.amp.GradScaler("cpu", init_scale=8.0), 0, 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    while step < STEPS:
        number += 1
        loss = model(batch(number)).pow(2).mean() * (float("inf") if number % 7 == 0 else 1.0)
        scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        if number % 7:
            step += 1
            stepped(step)
    return model


def two():
    """Two optimizers in one step, each with half of the parameters."""
    model = net()
    sgd, adamw = torch.optim.SGD(model[0].parameters(), lr=0.01), torch.optim.AdamW(model[2].parameters(), lr=0.01)
    for step in range(STEPS):
        model(batch(step)).pow(2).mean().backward()
        adamw.step()
        sgd.step()
        sgd.zero_grad()
        adamw.zero_grad()
        stepped(step + 1)
    return model


def gan():
    """Generator and discriminator take turns; an iteration is a step of both."""
    generator, judge = nn.Linear(8, 8), net()
    first, second = (torch.optim.AdamW(each.parameters(), lr=0.01) for each in (judge, generator))
    for step in range(STEPS):
        first.zero_grad()
        (judge(generator(batch(step)).detach()) - judge(batch(step + 1))).mean().backward()
        first.step()
        second.zero_grad()
        (-judge(generator(batch(step)))).mean().backward()
        second.step()
        stepped(step + 1)
    return nn.ModuleList([generator, judge])


def lbfgs():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for step in range(STEPS):

        def closure(step=step):
            optimizer.zero_grad()
            loss = model(batch(step)).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        stepped(step + 1)
    return model


def inference():
    """No optimizer: the outermost call of the model is the step."""
    model = net().eval()
    with torch.no_grad():
        for step in range(STEPS):
            model(batch(step))
            stepped(step + 1)
    return model


def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(net())
    return loop(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01))


def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    return loop(model, torch.optim.AdamW(model.parameters(), lr=0.01))


def fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return loop(model, torch.optim.AdamW(model.parameters(), lr=0.01))


def transformers(accumulate=1, **options):
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


def transformers_accumulation():
    return transformers(accumulate=2)


def transformers_sgd():
    return transformers(accumulate=2, optim="sgd")


def accelerate():
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


def lightning(manual=False, optimizer=torch.optim.AdamW):
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
    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(list(map(batch, range(STEPS))), None))
    return model


def lightning_manual():
    return lightning(manual=True)


def lightning_sgd():
    return lightning(optimizer=torch.optim.SGD)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if RANK >= 0 and sys.argv[1] in ("zero", "fsdp1", "fsdp2"):
        torch.distributed.init_process_group("gloo")
    model = globals()[sys.argv[1]]()
    weights = [getattr(weight, "to_local", lambda weight=weight: weight)() for weight in model.parameters()]
    digest = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in weights)).hexdigest()[:16]
    print(f"final {max(RANK, 0)} {global_step} {digest}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
