"""The choice of steps whose modules are recorded: one of N blocks of ten, by the job's own step numbers.

Steps calls begin_step() on the training thread, at the boundaries that it asks for.  Invariant: only the step number
decides which blocks are sampled, and what a larger N samples is a part of what a smaller one does; so ranks with
different N share the blocks of the largest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

from ...streams import BARE, BLOCK, EVERY, EXTRA, SAMPLED, UNTIMED
from ..noop import noop
from .block_times import BlockTimes

FIRST = 20  # steps after the attach that are all sampled: their cost decides how many later ones may be
BUDGET_PCT = 1.0
_AIMED_SHARE = 0.6  # of the budget: the error of our own measured cost is about as large as the rest
_PHASES_NS = 15_000  # per step: the clocks around engine and optimizer when no cache holds them
_MEASURED_STEP = 5  # the step of a sampled block in which the module taps time themselves
# The taps measure only the least of their own work.  Their marks also fire inside autograd and displace the job's data
# from the caches: a fully recorded step is longer than an unsampled one by up to four times what the taps measured.
_UNSEEN_FACTOR = 4
_PLAIN_EXCESS = 0.25  # of a step: a sampled one that is longer by this costs what whole blocks say, not what taps say
_REFERENCES = 3, 5  # blocks since the attach that are not sampled even with N=1, for sampled ones to be compared with
_ALWAYS_SAMPLED_BLOCK = 10  # steps 100 to 109 are sampled whatever N is
_BARE_PAIRS = 5  # one block in 2 * 2^5 is the control, without any tap; no N samples it, but 1
_MOST_ASKED = 32  # settings for some steps between two boundaries; the latest count
_SALT = 959  # with it, steps 100 to 109 and 200 to 209 are among those that N up to 16 samples: people look there
_MASK, _ODD, _OTHER = (1 << 64) - 1, 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93


def is_chosen(block: int, every: int) -> bool:
    """Whether this block is the sampled one of its window of `every`, a power of two.

    A window of 2^k blocks is two windows of half the size, and a hash of its number says which of the two keeps its
    block.  A grid would always meet, or never, what a job does periodically.
    """
    return all((block >> level - 1) & 1 == _hash(block >> level, level) & 1 for level in range(1, every.bit_length()))


def _is_bare(block: int) -> bool:
    window = block >> _BARE_PAIRS + 1
    pair = (window << _BARE_PAIRS) + _hash(window, len(EVERY)) % (1 << _BARE_PAIRS)
    return block >> 1 == pair and not is_chosen(block, 2)


def _hash(number: int, kind: int) -> int:
    """The same in every process, with all bits of the number in the last ones."""
    mixed = ((number * len(EVERY) * 2 + kind) ^ _SALT) * _ODD & _MASK
    mixed = (mixed ^ mixed >> 32) * _OTHER & _MASK
    return (mixed ^ mixed >> 32) * _OTHER >> 40 & 0xFFFF


class Sampling:
    """begin_step() runs on the training thread; set() and settings() on the agent's, with effect at a later step."""

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self.sample: int | None = None  # None: auto
        self.budget_pct = BUDGET_PCT
        self.backward = True
        self.every = 1
        self.times_phases = True  # whether phases are timed in steps that are not sampled
        self.spent_ns = 0  # summed by the taps while they time themselves
        self.cost_ns: int | None = None  # of one sampled step
        self._costs: deque[int] = deque(maxlen=4)
        self.switch_taps: Callable[[int, bool], None] = noop
        self._measuring = self._is_sampled = False
        self._block_times = BlockTimes()
        self.forced = range(0)  # steps since the attach that are sampled whatever else decides: those of a capture
        self._asked = deque[tuple[int, int]](maxlen=_MOST_ASKED)  # this N, for so many steps; 0: none of these any more
        self._lent: dict[int, int] = {}  # N -> until this step since the attach it is the largest

    def begin_step(self, step: int, since_attach: int, step_ns: Callable[[], int | None]) -> tuple[int, int]:
        """Open or close the taps for this step; returns (its flags, steps until the next call)."""
        if self._measuring:  # in the step that ends, the taps timed themselves
            self._costs.append(_UNSEEN_FACTOR * self.spent_ns)
            self.cost_ns = min(self._costs)  # a lost core only adds to the time
            self._choose(step_ns())
        while self._asked:
            self._lend(*self._asked.popleft(), since_attach)
        is_forced, index = since_attach in self.forced, step % BLOCK
        flags = SAMPLED | EXTRA if is_forced else self._flags(step // BLOCK, since_attach)
        self._measuring = bool(flags & SAMPLED) and self.sample is None and index == _MEASURED_STEP and not is_forced
        self.spent_ns = 0
        self._time_blocks(flags, index, since_attach, step_ns)
        self.switch_taps(flags, self._measuring)
        following = index + 1 if self._measuring or is_forced else _MEASURED_STEP if index < _MEASURED_STEP else BLOCK
        return flags, following - index

    def _lend(self, every: int, steps: int, since_attach: int) -> None:
        if steps:  # for longer than it holds already, if it does
            self._lent[every] = max(self._lent.get(every, 0), since_attach + steps)
        else:
            self._lent.clear()

    def _least_lent(self, since_attach: int) -> int | None:
        return min((every for every, until in self._lent.items() if since_attach < until), default=None)

    def _time_blocks(self, flags: int, index: int, since_attach: int, step_ns: Callable[[], int | None]) -> None:
        is_forced, is_sampled = since_attach in self.forced, bool(flags & SAMPLED)
        if is_forced or (index and is_sampled != self._is_sampled):
            self._block_times.spoil()
        elif index == 0 and self._block_times.begin(since_attach, is_sampled, self._clock()):
            self._choose(step_ns())
        self._is_sampled = is_sampled

    def _flags(self, block: int, since_attach: int) -> int:
        every = min(self.every, self._least_lent(since_attach) or self.every)
        if is_chosen(block, every) and not self._is_reference(block, since_attach):
            return SAMPLED
        if block == _ALWAYS_SAMPLED_BLOCK or (self.sample is None and since_attach < FIRST):
            return SAMPLED | EXTRA
        if _is_bare(block):
            return BARE
        return 0 if self.times_phases else UNTIMED

    def _is_reference(self, block: int, since_attach: int) -> bool:
        """Whether auto leaves this block although it samples all."""
        if self.sample is not None or self.every > 1 or self._least_lent(since_attach):
            return False
        return since_attach // BLOCK in _REFERENCES or _is_bare(block)

    def _choose(self, step_ns: int | None) -> None:
        """Choose what fits the budget: phases of all steps may take up to half of it, modules take the rest."""
        self.every = self.sample or self.every
        if not step_ns:
            return
        budget_ns = _AIMED_SHARE * step_ns * self.budget_pct / 100
        self.times_phases = budget_ns >= 2 * _PHASES_NS
        budget_ns -= self.times_phases * _PHASES_NS
        if self.sample is None and self.cost_ns is not None:
            excess_ns = self._block_times.excess_ns
            cost_ns = max(self.cost_ns, excess_ns if excess_ns >= _PLAIN_EXCESS * step_ns else 0)
            self.every = next((every for every in EVERY if every * budget_ns >= cost_ns), EVERY[-1])

    def spend(self, ns: int) -> None:
        """The taps call this while they time themselves."""
        self.spent_ns += ns

    def set(self, requested: Mapping[str, Any], step_ns: int | None) -> None:
        """Apply settings; with for_steps, `sample` holds for so many steps only, and without ends all that does.

        Raises ValueError, which names the rejected one, before anything is changed.
        """
        checked = {name: _check(name, value) for name, value in requested.items()}
        if (steps := checked.pop("for_steps", None)) is not None:
            self._asked.append((checked.pop("sample", None) or 1, steps))
        elif "sample" in checked:
            self._asked.append((1, 0))
        self.sample = checked.get("sample", self.sample)
        self.budget_pct = checked.get("budget_pct", self.budget_pct)
        self.backward = checked.get("backward", self.backward)
        self._choose(step_ns)

    def close(self) -> None:
        """Call this when the taps are gone."""
        self.switch_taps = noop

    def settings(self) -> dict[str, Any]:
        return {
            "sample": self.sample or "auto",
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
    if name == "for_steps" and type(value) is int and value > 0:
        return value
    raise ValueError(f"{name}={value!r}")
