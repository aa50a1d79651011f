"""One training step of a model of GPT-2's size (124 million parameters) in bfloat16, random weights and tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from workloads import acceptance_job

BATCH, LENGTH = 8, 1024


def gpt2(device: Any, batch: int = BATCH, length: int = LENGTH) -> tuple[nn.Module, Callable[[], None]]:
    """The model, and what makes one step; nothing in it waits for the device."""
    job = acceptance_job()
    sizes = {"vocab_size": 50257, "max_position_embeddings": LENGTH, "hidden_size": 768}
    model: Any = job.GPT(job.Config(**sizes, num_attention_heads=12, num_layers=12)).to(device)
    model.lm_head.weight = model.wte.weight  # as GPT-2 has it
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 50257, (batch, length + 1), device=device)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return model, step
