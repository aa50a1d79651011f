"""The seam of the taps: what TorchTaps calls on each of them, and what they are made from.

A new tap is one file with a subclass of Tap, and its import and name in registry.py.  Invariant: a tap never raises
into the training step; it reports its own faults, and what reporter() returns raises only what a signal handler of the
job has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...streams import BARE, SAMPLED
from ..boundary.boundary import Boundary
from ..evals.evaluation import Evaluation
from ..fault import in_words
from ..job_signals import raised_by_handler
from ..names.modules import Modules
from ..noop import noop
from ..steps.sampling import Sampling
from ..steps.step_count import Steps
from ..storage.log import Log
from ..storage.rows import Stream

CurrentEval = Callable[[int], Evaluation | None]  # of a thread
ReportFault = Callable[[Exception], None]  # raises its argument if a signal handler of the job has raised that


@dataclass
class TapContext:
    """The parts of the agent that taps are made from, the taps made so far, and the first fault of each in words."""

    streams: dict[str, Stream]
    log: Log
    modules: Modules
    steps: Steps
    sampling: Sampling
    boundary: Boundary
    current_eval: CurrentEval
    taps: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    drain_soon: Callable[[], None] = noop  # has the agent's thread call drain(), and again as long as a tap waits
    calls_end_steps: Callable[[], bool] = lambda: False  # whether the job calls modules and makes no steps

    def reporter(self, name: str) -> ReportFault:
        """The function with which this tap reports its own faults, on any thread; the first one ends its recording.

        Calls under way may still report once `taps` is cleared: nothing is left to switch off then.
        """
        taps, faults = self.taps, self.faults

        def report_fault(error: Exception) -> None:
            if type(error) is RecursionError:  # no frame is left to look into it, and the job's own call needs less
                return
            if raised_by_handler(error):
                raise error
            if name not in faults:
                faults[name] = f"{name}: {in_words(error)}"
                for tap in list(taps.values()):
                    if name in tap.off_after:
                        tap.switch(BARE)

        return report_fault


class Tap:
    """One tap.  Whatever it does not override does nothing."""

    name: ClassVar[str]
    fallback: ClassVar[type[Tap] | None] = None  # for a torch that makes the constructor raise LookupError
    on_demand: ClassVar[bool] = False  # it has no state until the job uses what it records
    off_after: ClassVar[tuple[str, ...]] = ()  # the taps, itself included, whose fault ends its recording
    why_off = ""  # why it records nothing, other than a fault

    def __init__(self, context: TapContext) -> None:
        """Change nothing in torch yet.  Raises whatever an unknown torch causes."""

    @classmethod
    def make(cls, context: TapContext) -> Tap:
        """The tap for this torch."""
        try:
            return cls(context)
        except LookupError:
            if cls.fallback is None:
                raise
            return cls.fallback(context)

    @property
    def state(self) -> str | None:
        """`on`, or off and why; None as long as the job does not use what it records."""
        return f"off: {self.why_off}" if self.why_off else "on"

    @property
    def since_ns(self) -> int | None:
        """When recording began, if it began after the attach."""
        return None

    @property
    def ends_steps(self) -> bool:
        """Whether steps end in what it records, so that it goes on in every step."""
        return False

    @property
    def waits(self) -> bool:
        """Whether drain() will soon have something to write."""
        return False

    def install(self) -> None:
        """Put into torch what can be put there at once.  On the bootstrap's or the agent's thread."""
        self.switch(SAMPLED)

    def switch(self, flags: int, spend: Callable[[int], None] | None = None) -> None:
        """Record what a step with these flags calls for; nothing if it is BARE.

        spend: called with the nanoseconds that each piece of the tap took.  On the training thread between two steps,
        or on any other one after a fault.
        """

    def tend(self) -> None:
        """Do what could not be done at once.  Every second, on the agent's thread."""

    def drain(self) -> None:
        """Write what is known by now to the streams.  On the agent's thread."""

    def remove(self) -> str | None:
        """Take everything out of torch; returns what had to stay, in words.  On any thread but the agent's."""
        self.switch(BARE)
        return None

    def forget(self) -> None:
        """In a forked child: nothing of ours may run, and only this thread exists."""
        self.remove()

    def finish(self) -> None:
        """The interpreter is about to end: let no thread of torch's call us after that.  On the main thread."""

    def release(self) -> None:
        """After remove() and the end of the agent's thread: leave nothing to the garbage collector."""
