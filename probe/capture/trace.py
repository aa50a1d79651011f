"""A trace that torch's profiler wrote, as raw rows: operators with what they ran in, and what ran on devices for them.

Called by capture, in the command's process.  Invariant: pure; a row is a complete event of the trace.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..streams import ANNOTATION, BACKWARD
from .cost import UNKNOWN, cost_of
from .dtypes import dtype_of
from .launches import Launches
from .operator_call import Event, Operator
from .processors import devices_of, say_what_ran_where

_OPERATORS = {"cpu_op": 0, "user_annotation": ANNOTATION}  # categories, with the flag of their rows
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
Name = Callable[[str], int]  # the id of a string in the agent's log


@dataclass
class Trace:
    """operators: those of a thread in the order of their starts; kernels: events, likewise; launches: what launched
    them; has_shapes: of the operators' arguments."""

    operators: list[Operator]
    kernels: list[Event]
    launches: Launches
    shift_ns: int
    has_shapes: bool

    @classmethod
    def parse(cls, text: bytes, wall_offset_ns: int, cpu: str = "", uses_cuda: bool = False) -> Trace:
        """wall_offset_ns: what the host's wall clock is ahead of its monotonic one; cpu: what operators run on that
        launch nothing, which is not known where CUDA is used and no kernel was seen.  Raises ValueError."""
        told = json.loads(text)
        shift = int(told.get("baseTimeNanoseconds") or 0) - wall_offset_ns
        complete = [each for each in told["traceEvents"] if each.get("ph") == "X"]
        kernels = [each for each in complete if each.get("cat") in _ON_DEVICE]
        kernels.sort(key=lambda each: float(each["ts"]))  # the ring loses them in the order in which they ran
        cpu = cpu if kernels or not uses_cuda else ""
        operators = [_operator(each, shift, cpu) for each in complete if each.get("cat") in _OPERATORS]
        operators.sort(key=lambda each: (each.thread, each.start_ns, -each.end_ns))
        operators, numbered = _merged(operators, _callers(operators))
        _link_backwards(operators)
        launches = Launches(complete, operators, numbered, shift)
        say_what_ran_where(operators, kernels, launches, devices_of(told))
        has_shapes = any("Input Dims" in each.args for each in operators)
        return cls(operators, kernels, launches, shift, has_shapes)

    @property
    def strings(self) -> Iterable[str]:
        """What the rows name, each once; the name of a range may be empty."""
        names = (each.name for each in self.operators)
        known = (text for each in self.operators for text in (each.shapes, each.dtype, each.processor) if text)
        of_kernels = (text for each in self.kernels for text in (each["name"], each["cat"]))
        return dict.fromkeys((*names, *known, *of_kernels))

    def operator_rows(self, name: Name, first: int) -> Iterable[tuple[int, ...]]:
        """Rows of the stream of operators, numbered from `first`."""
        for number, (each, (flops, size)) in enumerate(zip(self.operators, self._costs(), strict=True), first):
            made = each.made or each
            known = each.made is not None or not each.flags & BACKWARD
            caller = 0 if each.caller < 0 else first + each.caller
            shapes, dtype, processor = (name(text) if text else 0 for text in (each.shapes, each.dtype, each.processor))
            yield (each.start_ns, each.end_ns, name(each.name), caller, each.thread, made.start_ns + 1,
                   made.thread if known else 0, shapes, dtype, processor, flops, size, each.flags, number)  # fmt: skip

    def _costs(self) -> Iterable[tuple[int, int]]:
        """FLOPs and bytes of each operator; what runs inside of one that has them is a part of its."""
        if not self.has_shapes:
            return [(UNKNOWN, UNKNOWN)] * len(self.operators)
        costs, inside = list[tuple[int, int]](), list[bool]()
        for each in self.operators:
            around = each.caller >= 0 and inside[each.caller]
            cost = (0, 0) if around else cost_of(each.name, each.args)
            costs.append((UNKNOWN, UNKNOWN) if each.launches and not around and cost == (0, 0) else cost)
            inside.append(around or (costs[-1] > (0, 0) and costs[-1][1] != UNKNOWN))
        return costs

    def kernel_rows(self, name: Name, first: int, first_operator: int) -> Iterable[tuple[int, ...]]:
        """Rows of the stream of kernels, numbered from `first`."""
        for number, each in enumerate(self.kernels, first):
            args, (start, end) = each.get("args", {}), _times(each, self.shift_ns)
            launched_ns, place = self.launches.of(each)
            operator = 0 if place < 0 else first_operator + place
            yield (start, end, launched_ns, name(each["name"]), name(each["cat"]), int(args.get("device", -1)),
                   int(args.get("stream", -1)), operator, int(args.get("bytes", UNKNOWN)), number)  # fmt: skip


def _operator(event: Event, shift: int, cpu: str) -> Operator:
    (start, end), args = _times(event, shift), event.get("args", {})
    flags = _OPERATORS[event["cat"]]
    return Operator(start, end, event["name"], int(event["tid"]), flags, args, dtype_of(args), cpu)


def _times(event: Event, shift: int) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start + shift, start + shift + round(event.get("dur", 0) * 1000)


def _callers(operators: list[Operator]) -> list[int]:
    """The place of what each one ran in, or -1; of several with one start the longest comes first."""
    callers, around = list[int](), list[int]()
    for place, each in enumerate(operators):
        while around and not _is_within(each, operators[around[-1]]):
            around.pop()
        callers.append(around[-1] if around else -1)
        around.append(place)
    return callers


def _merged(operators: list[Operator], callers: list[int]) -> tuple[list[Operator], dict[int, int]]:
    """Without those that are all that one of the same name called, as torch shows them; and places by External id."""
    called, kept = Counter(callers), list[Operator]()
    places: list[int] = []  # of each among those kept
    called_by_kept: list[int] = []
    numbered = {}
    for place, each in enumerate(operators):
        caller = -1 if callers[place] < 0 else places[callers[place]]
        if caller >= 0 and kept[caller].name == each.name and called_by_kept[caller] == 1:
            called_by_kept[caller] = called[place]
            places.append(caller)
        else:
            each.caller = caller
            places.append(len(kept))
            kept.append(each)
            called_by_kept.append(called[place])
        if (number := each.args.get("External id")) is not None:
            numbered[number] = places[-1]
    return kept, numbered


def _is_within(one: Operator, other: Operator) -> bool:
    return one.thread == other.thread and one.start_ns < other.end_ns and one.end_ns <= other.end_ns


def _link_backwards(operators: list[Operator]) -> None:
    """Give each backward, and what ran in it, the operator that made its node.

    Of those that began before the node had its number, that is the last one, or what the last one ran in.  Two threads
    may have numbers of their own: one that both have tells nothing.
    """
    made: dict[int, Operator] = {}
    twice: set[int] = set()
    for each in operators:
        number = each.args.get("Sequence number", -1)
        if number >= 0 and not each.args.get("Fwd thread id"):
            if number in made and made[number].thread != each.thread:
                twice.add(number)
            if number not in made or made[number].start_ns <= each.start_ns:
                made[number] = each
    for each in operators:
        caller = operators[each.caller] if each.caller >= 0 else None
        number = each.args.get("Sequence number", -1)
        if each.args.get("Fwd thread id"):
            each.flags |= BACKWARD
            each.made = None if number in twice else made.get(number)
        if caller is not None and caller.flags & BACKWARD:
            each.flags |= BACKWARD
            each.made = each.made or caller.made
