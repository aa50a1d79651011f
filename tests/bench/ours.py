"""Our own taps as an instrument, in a worker into which `probe attach` has put the agent from outside.

The agent, with its thread and its samplers, stays for the bare steps too; what comes and goes is all that it has put
in the way of the training.  The one invariant: after take() nothing of that is left there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # probe is not installed where the jobs run

from probe.streams import BARE, SAMPLED, SPANS, STEPS, UNTIMED

_FOR_GOOD = 1 << 40  # steps


class Everything:
    """Every call, mark, pass, batch and step is recorded, in each step."""

    def __init__(self) -> None:
        self._agent = _agent()
        flags = self._flags()
        self._agent.sampling.begin_step = lambda *_: self._begin_step(flags)
        self._agent.taps.by_name["optimizer"].install()
        self._begin_step(flags)
        self._agent.steps.resample()
        self._before = self._rows()

    def _flags(self) -> int:
        return SAMPLED

    def _begin_step(self, flags: int) -> tuple[int, int]:
        self._agent.sampling.switch_taps(flags, False)
        return flags, _FOR_GOOD

    def _rows(self) -> int:
        return sum(int(self._agent.streams[name].position()) for name in (STEPS, SPANS))

    def take(self) -> int:
        self._agent.sampling.switch_taps(BARE, False)
        self._agent.taps.by_name["optimizer"].remove()
        return self._rows() - self._before


class WithoutBackward(Everything):
    """As `set backward=off` has it."""

    def __init__(self) -> None:
        _agent().sampling.backward = False
        super().__init__()

    def take(self) -> int:
        self._agent.sampling.backward = True
        return super().take()


class BetweenSamples(Everything):
    """What is always there: a row a step, and the clocks around its phases where they are within the budget."""

    def _flags(self) -> int:
        return 0 if self._agent.sampling.times_phases else UNTIMED


def _agent() -> Any:
    """The running agent, which was loaded under a name of its own."""
    name = next(name for name in sys.modules if name.startswith("_probe_agent") and name.endswith(".main"))
    return sys.modules[name]._agent  # type: ignore[attr-defined]
