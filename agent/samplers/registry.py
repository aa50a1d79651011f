"""The samplers of an agent, in the order in which they sample.  SamplerLoop makes one of each."""

from __future__ import annotations

from .gpu import Gpu
from .process import Process
from .sampler import MakeSampler

SAMPLERS: dict[str, MakeSampler] = {
    Process.name: Process,
    Gpu.name: Gpu,
}
