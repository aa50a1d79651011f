"""Which steps have their modules recorded: blocks of ten, every N-th of them, on the grid of the job's own steps.

Asked by Steps at the boundaries that turn() names, on the training thread.  The one invariant: a block is ten
steps whose number is all that decides, so ranks that sample every 5th and every 20th share the 20th.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ...streams import BARE, BLOCK, EVERY, SAMPLED, UNTIMED
from ..noop import noop

FIRST = 20  # steps after the attach that all are sampled: what they cost says how many of the rest may be
BUDGET_PCT = 1.0
_AIM = 0.6  # of the budget: what is measured of ourselves is off by about as much as is left
_PHASES_NS = 15_000  # of a step: the clocks around engine and optimizer, when no cache holds them
_MEASURED = 5  # the step of a sampled block in which the taps on modules time themselves
# The taps see what they do themselves, at its least; with their marks' firing inside of autograd, and what all that
# drives out of the caches, a step with everything takes up to four times as much longer than one between samples.
_UNSEEN = 4
_ALWAYS = 10  # steps 100 to 109 are sampled whatever N is: people like to look there
_BARE_OF, _BARE_AT = 50, 27  # this block of each 50 is the control, without any tap; no N samples it


class Sampling:
    """turn() on the training thread; set() and settings() on the agent's, and take effect at the next turn."""

    def __init__(self) -> None:
        self.sample: int | None = None  # None: auto
        self.budget_pct = BUDGET_PCT
        self.backward = True
        self.every = 1
        self.times_phases = True  # of steps that are not sampled
        self.spent_ns = 0  # added up by the taps that time themselves
        self.cost_ns: int | None = None  # of one sampled step
        self._costs: deque[int] = deque(maxlen=4)
        self.gate: Callable[[int, bool], None] = noop
        self._measuring = False

    def turn(self, step: int, since_attach: int, step_ns: Callable[[], int | None]) -> tuple[int, int]:
        """Open or close the taps for this step: (its flags, steps until this wants to be asked again)."""
        if self._measuring:
            self._learn(step_ns())
        flags = self._flags(step // BLOCK, since_attach)
        place = step % BLOCK
        self._measuring = bool(flags & SAMPLED) and self.sample is None and place == _MEASURED
        self.spent_ns = 0
        self.gate(flags, self._measuring)
        return flags, 1 if self._measuring else (_MEASURED if place < _MEASURED else BLOCK) - place

    def _flags(self, block: int, since_attach: int) -> int:
        if (block - _ALWAYS) % self.every == 0 or (self.sample is None and since_attach < FIRST):
            return SAMPLED
        if block % _BARE_OF == _BARE_AT:
            return BARE
        return 0 if self.times_phases else UNTIMED

    def _learn(self, step_ns: int | None) -> None:
        """From a step in which the taps timed themselves: the least of the last ones, for losing the core only adds."""
        self._costs.append(_UNSEEN * self.spent_ns)
        self.cost_ns = min(self._costs)
        self._choose(step_ns)

    def _choose(self, step_ns: int | None) -> None:
        """What may be done within the budget: the phases of all steps take up to half of it, modules the rest."""
        self.every = self.sample or self.every
        if not step_ns:
            return
        budget_ns = _AIM * step_ns * self.budget_pct / 100
        self.times_phases = budget_ns >= 2 * _PHASES_NS
        budget_ns -= self.times_phases * _PHASES_NS
        if self.sample is None and self.cost_ns is not None:
            self.every = next((every for every in EVERY if every * budget_ns >= self.cost_ns), EVERY[-1])

    def spend(self, ns: int) -> None:
        """Told by the taps while they are measured."""
        self.spent_ns += ns

    def set(self, asked: Mapping[str, Any], step_ns: int | None) -> None:
        """Raises ValueError, naming what is valid, and then has changed nothing."""
        checked = {name: _check(name, value) for name, value in asked.items()}
        self.sample = checked.get("sample", self.sample)
        self.budget_pct = checked.get("budget_pct", self.budget_pct)
        self.backward = checked.get("backward", self.backward)
        self._choose(step_ns)

    def close(self) -> None:
        """There are no taps any more."""
        self.gate = noop

    def settings(self) -> dict[str, Any]:
        sample = "auto" if self.sample is None else self.sample
        return {
            "sample": sample,
            "every": self.every,
            "budget_pct": self.budget_pct,
            "backward": self.backward,
            "cost_ns": self.cost_ns,
        }


def _check(name: str, value: Any) -> Any:
    if name == "sample" and (value == "auto" or (type(value) is int and value in EVERY)):
        return None if value == "auto" else value
    if name == "budget_pct" and type(value) in (int, float) and 0 < value <= 100:
        return float(value)
    if name == "backward" and type(value) is bool:
        return value
    raise ValueError(f"{name}={value!r}")
