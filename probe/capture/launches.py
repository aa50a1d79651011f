"""What launched each kernel, copy and fill: the operator, and the call into CUDA.

Called by trace.  Invariant: of a kernel whose launch the trace does not have, nothing is told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .operator_call import Event, Operator

_CALLS = {"cuda_runtime", "cuda_driver"}


class Launch(NamedTuple):
    """at_ns: when, 0: unknown; place: of the operator, -1: unknown."""

    at_ns: int
    place: int


class Launches:
    """operators: those of a thread in the order of their starts; numbered: the place of each, by its number; shift_ns:
    what times are more than in the trace; calls: into CUDA, by correlation."""

    def __init__(
        self, complete: Sequence[Event], operators: Sequence[Operator], numbered: Mapping[int, int], shift_ns: int
    ) -> None:
        self._operators, self._numbered, self._shift_ns = operators, numbered, shift_ns
        self.calls = {each["args"]["correlation"]: each for each in complete if each.get("cat") in _CALLS}

    def of(self, kernel: Event) -> Launch:
        args = kernel.get("args", {})
        call, number = self.calls.get(args.get("correlation")), args.get("External id")
        at_ns = 0 if call is None else round(call["ts"] * 1000) + self._shift_ns
        if number is not None:
            return Launch(at_ns, self._numbered.get(number, -1))
        return Launch(at_ns, -1 if call is None else self._around(int(call["tid"]), at_ns))

    def _around(self, thread: int, moment: int) -> int:
        """The innermost there and then, annotations included, which have no numbers for their kernels."""
        place = bisect_right(self._operators, (thread, moment), key=lambda each: (each.thread, each.start_ns)) - 1
        while place >= 0 and not self._is_around(self._operators[place], thread, moment):
            place = self._operators[place].caller
        return place

    def _is_around(self, operator: Operator, thread: int, moment: int) -> bool:
        return operator.thread == thread and moment < operator.end_ns
