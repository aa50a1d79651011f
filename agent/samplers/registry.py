"""The samplers of an agent, in the order in which they sample.  SamplerLoop makes one of each.

An import registers a sampler: a new one is one import here.
"""

# ruff: noqa: F401, I001 - the order of imports is that of the samplers

from __future__ import annotations

from .sampler import MakeSampler
from .process import Process
from .gpu import Gpu
from .memory import Memory
from .compilations import Compilations

SAMPLERS: dict[str, MakeSampler] = {each.name: each for each in list(globals().values()) if hasattr(each, "sample")}
