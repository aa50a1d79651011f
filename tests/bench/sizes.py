"""How the workloads are called in the tables, and how many steps their blocks have; read where there is no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """steps: of a block, the fewer the better where the machine is not its own from one second to the next; warm:
    steps before a block that are let go, where what the change itself costs would show.
    """

    title: str
    steps: int
    warm: int


SIZES = {
    "mlp": Size("MLP, 4 modules", 100, 40),
    "gpt15": Size("GPT, 106 modules, short", 2, 1),
    "gpt100": Size("GPT, 106 modules, longer", 1, 0),
    "cnn": Size("ResNet of 8 blocks, 80 modules", 1, 0),
    "transformer": Size("BERT of `transformers`, 231 modules", 1, 0),
    "acceptance": Size("the acceptance job, 45 module calls, DataLoader", 1, 0),
}
