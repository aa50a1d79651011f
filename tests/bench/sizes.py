"""How the workloads are called in the tables, and how many steps their blocks have; read where there is no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """steps: of a block, so few that a cell takes about a second; warm: steps before a block that are let go.

    The peer records from the third step on that follows its switching on.
    """

    title: str
    steps: int
    warm: int


SIZES = {
    "mlp": Size("MLP, 4 modules", 100, 40),
    "gpt15": Size("GPT, 106 modules, short", 4, 4),
    "gpt100": Size("GPT, 106 modules, longer", 3, 3),
    "cnn": Size("ResNet of 8 blocks, 80 modules", 4, 3),
    "transformer": Size("BERT of `transformers`, 231 modules", 3, 3),
    "acceptance": Size("the acceptance job, 45 module calls, DataLoader", 4, 3),
}
