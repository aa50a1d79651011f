"""One step number for the whole job: ranks that were attached at different moments get offsets.

Called at connect and before a query or eval.  The default group's sequence number is the same on every rank at the same
boundary, so boundaries with the same number are the same step; but gloo also counts sends and receives, on the two
ranks alone that take part, after which the numbers are no longer the same.  So a rank that has an offset keeps it as
long as its boundaries and those of the reference are in step by the clock, and numbers that the clock contradicts give
none.  Invariant: the rank attached first keeps its numbers, unless another one knows the optimizer's own.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import sub
from statistics import median
from typing import TYPE_CHECKING, Any

from .. import protocol as wire
from ..client.client import AgentLink, Call, Client, Header
from ..errors import EvalError, SilentError
from ..streams import STEPS

if TYPE_CHECKING:
    from .source import Rank

_BOUNDARIES, _MORE_BOUNDARIES = 64, 1024  # compared; more if ranks are too many steps apart for the first
GROUP_SEQ, COUNTED = "group_seq", "attach"  # sources: of the numbers of another rank; of its own count
_AMBIGUOUS = -1  # instead of a count
SETTLE_S = 5.0  # if the first steps of a job take longer, its rows are shown only later
_PAUSE_S, _LONGER, _MOST_PAUSE_S = 0.02, 1.2, 0.5  # between two looks at ranks that have made no step
_COMPARED = ("group_seq", "count", "time_ns")  # slots of a boundary
OWN = ("optimizer", "trainer", "scheduler")  # sources of the job's own number, best first
VARIABLE = "variable "  # begins a source that the user has named, which is better still

_IN_STEP, _ENOUGH = 2, 8  # boundaries of one step lie within so many usual steps; so many pairs of them can tell
_CLOCKS_NS = 50_000_000  # by which the wall clocks of two hosts, as they are known here, may differ


@dataclass
class Boundaries:
    """Boundaries of one rank.  counts: by the default group's sequence number; ends: by count, in ns of the host's
    monotonic clock; clock: the kernel there, and what makes a time of the wall clock out of one of `ends`."""

    counts: dict[int, int]
    ends: dict[int, int]
    clock: tuple[str, int]

    @cached_property
    def usual_ns(self) -> float:
        """How long a step takes; the reference's is asked for by every other rank."""
        gaps = [end - self.ends[count - 1] for count, end in self.ends.items() if count - 1 in self.ends]
        return median(gaps) if gaps else 0


class Alignment:
    """Keeps the step numbers of a client's ranks aligned.  lost: ranks without a common boundary so far."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client, self._timeout = client, timeout
        self.lost: list[AgentLink] = []

    def align(self) -> None:
        """Give ranks the offsets they lack."""
        links = [link for link in self._client.links if not link.gone]
        sources = {link.facts.step_source for link in links}
        if len(links) < 2 or (len(sources) == 1 and (sources <= set(OWN) or str(*sources).startswith(VARIABLE))):
            self.lost = []
            return
        lost = [link for link in links if not link.silent and not link.facts.step_settled]
        if not lost:
            deadline = time.monotonic() + self._timeout
            lost = _align(self._client, links, deadline, _BOUNDARIES) or []
            again = _align(self._client, links, deadline, _MORE_BOUNDARIES) if lost else []
            lost = lost if again is None else again
        self.lost = lost  # only now: whoever is interrupted before this aligns again

    def update(self) -> None:
        """Align if anything may have changed since the last time."""
        if self.settle() or self.lost:
            self.align()

    def settle(self) -> bool:
        """Wait until step numbers are final: a trainer's or scheduler's is trusted only after some steps.

        Returns whether any may have changed.
        """
        asked, end = False, time.monotonic() + min(self._timeout, SETTLE_S)
        while any(map(may_change, self._answering())):
            self._refresh()
            asked = True
            if all(link.facts.step_settled for link in self._answering()) or time.monotonic() > end:
                break
            time.sleep(0.05)
        return asked

    def same_steps(self, links: Sequence[AgentLink], on_late: Callable[[Sequence[AgentLink]], object]) -> None:
        """Wait until these ranks count the same steps.  on_late: is given those that have made none since the attach,
        again and again.

        Raises EvalError if the steps cannot be matched: nothing can run at the same one.
        """
        begun, pause_s = time.monotonic(), _PAUSE_S
        while True:
            answered = self._refresh()
            self.align()
            unknown = [link for link in links if may_change(link)]
            mute = [link for link in unknown if link not in answered]
            lost = mute or [link for link in links if link in self.lost]
            if not unknown and not lost:
                return
            on_late([link for link in unknown if link in answered])
            if unknown and not mute:
                begun = time.monotonic()
            elif time.monotonic() > begun + self._timeout:
                ranks = ", ".join(str(link.rank) for link in lost)
                why = f"The steps of rank {ranks} cannot be matched to those of the others."
                why = f"No step since the attach on rank {ranks}, which does not answer." if mute else why
                raise EvalError(why, "Run it with --now.", "no-step")
            time.sleep(pause_s)
            pause_s = min(_MOST_PAUSE_S, pause_s * _LONGER)

    def _answering(self) -> list[AgentLink]:
        return [link for link in self._client.links if not link.silent]

    def _refresh(self) -> list[AgentLink]:
        return refresh(self._client, self._answering(), time.monotonic() + self._timeout)


def refresh(client: Client, links: Sequence[AgentLink], deadline: float) -> list[AgentLink]:
    """Take the facts of those agents that answer, as they are now; which do."""
    answered = []
    for call in client.ask(wire.HELLO, deadline, links, protocol=wire.PROTOCOL):
        if call.answer is not None:
            call.link.facts = call.answer["facts"]
            answered.append(call.link)
    return answered


def may_change(one: AgentLink | Rank) -> bool:
    """Whether the agent may still find the job's own step number, as far as is known here."""
    facts = one.facts
    return not facts.step_settled or (facts.step_source == COUNTED and not facts.count)


def _align(client: Client, links: Sequence[AgentLink], deadline: float, recent: int) -> list[AgentLink] | None:
    """Compare that many boundaries of each rank.  Returns the ranks that have none in common; None if no boundary of
    any has come, or none in a group."""
    boundaries = _boundaries(client, links, deadline, recent)
    reference = min(boundaries, key=lambda link: (not boundaries[link].counts, _precedence(link)), default=None)
    if reference is None:
        return None
    first, known = reference.facts.step_base, boundaries.pop(reference)
    lost, calls = [], []
    for link, own in boundaries.items():
        base, source = link.facts.step_base, link.facts.step_source
        if source == GROUP_SEQ and _in_step(own, known, base - first):
            continue
        offset = _offset(own, known)
        if offset is None:
            lost.append(link)
            continue
        if (base, source) == (base := first + offset, GROUP_SEQ):
            continue
        if link.role != wire.CONTROL:
            link.number_steps(base, GROUP_SEQ)
            continue
        if not link.silent:
            calls.append(client.send(link, wire.ALIGN, base=base, source=GROUP_SEQ))
        link.facts = link.facts._replace(step_base=base, step_source=GROUP_SEQ)
    client.forget(client.wait(calls, deadline))
    return lost


def _offset(own: Boundaries, known: Boundaries) -> int | None:
    """What to add to a count of `own` for the same step's of `known`: by the majority of the numbers that both have."""
    common = own.counts.keys() & known.counts.keys()
    votes = Counter(map(sub, map(known.counts.__getitem__, common), map(own.counts.__getitem__, common)))
    offset, most = votes.most_common(1)[0] if votes else (0, 0)
    return offset if 2 * most > len(common) and _in_step(own, known, offset) is not False else None


def _in_step(own: Boundaries, known: Boundaries, offset: int) -> bool | None:
    """Whether boundaries that count as one step were reached at about the same time; None: too few can tell."""
    same_clock = own.clock[0] == known.clock[0]
    ahead = 0 if same_clock else own.clock[1] - known.clock[1]
    apart = [
        abs(end + ahead - known.ends[at]) for count, end in own.ends.items() if (at := count + offset) in known.ends
    ]
    if len(apart) < _ENOUGH:
        return None
    usual = max(own.usual_ns, known.usual_ns)
    return median(apart) <= _IN_STEP * usual + (0 if same_clock else _CLOCKS_NS)


def _precedence(link: AgentLink) -> tuple[int, int]:
    source = link.facts.step_source or ""
    known = -1 if source.startswith(VARIABLE) else OWN.index(source) if source in OWN else len(OWN)
    return known, link.facts.attached_wall_ns


def _boundaries(
    client: Client, links: Sequence[AgentLink], deadline: float, recent: int
) -> dict[AgentLink, Boundaries]:
    """Each rank's last boundaries, without numbers that occur twice."""
    asked = [link for link in links if not link.silent]
    request = {"stream": STEPS, "last": 1 << 62, "credit": wire.CREDIT, "patch": []}
    seen: dict[Call, Boundaries] = {
        client.send(link, wire.SCAN, b"", first=max(1, link.facts.count - recent), **request): _none_yet(link)
        for link in asked
    }

    def take(call: Call, header: Header, payload: Sequence[Any]) -> None:
        _add(seen[call], *_rows(call.link, int(header["first"]), payload[1]))

    try:
        client.wait(list(seen), deadline, take)
    finally:  # after Ctrl-C too: an answer that comes later is nobody's
        client.cancel(call for call in seen if call.answer is None)
        client.forget(seen)
    told = {call.link: found for call, found in seen.items() if call.answer is not None}
    stored = {link: _stored(link) for link in links if link.silent and link.here}
    known = {}
    for link, found in {**told, **stored}.items():
        counts = {number: count for number, count in found.counts.items() if number >= 0 and count != _AMBIGUOUS}
        if any(number >= 0 for number in found.counts):  # a number that stands still may go on later
            known[link] = replace(found, counts=counts)
    return known


def _none_yet(link: AgentLink) -> Boundaries:
    return Boundaries({}, {}, (link.facts.boot_id or link.facts.host, link.facts.wall_offset_ns))


def _stored(link: AgentLink) -> Boundaries:
    """Read from the memory of a rank that does not answer."""
    from .memory_source import MemorySource
    from .snapshot import Snapshot

    found = _none_yet(link)
    with suppress(SilentError):
        rows = Snapshot([MemorySource(link.pid)]).ranks[0].rows(STEPS)
        _add(found, *(rows[slot].tolist() for slot in _COMPARED))
    return found


def _rows(link: AgentLink, first: int, data: Any) -> Sequence[Sequence[int]]:
    """The compared slots of the complete rows; without numpy, which eval does not need otherwise."""
    slots = link.facts.slots(STEPS)
    values = array("q")
    values.frombytes(data)
    columns = [values[slots.index(name) :: len(slots)] for name in _COMPARED]
    places = values[len(slots) - 1 :: len(slots)]
    if places == array("q", range(first, first + len(places))):
        return columns
    whole = [i for i, place in enumerate(places) if place == first + i]
    return [[column[i] for i in whole] for column in columns]


def _add(found: Boundaries, numbers: Sequence[int], counts: Sequence[int], times: Sequence[int]) -> None:
    """Add boundaries to those found; a number that occurs twice is marked."""
    new = dict(zip(numbers, counts, strict=True))
    if len(new) < len(numbers):
        new |= {number: _AMBIGUOUS for number, often in Counter(numbers).items() if often > 1}
    new |= dict.fromkeys(new.keys() & found.counts.keys(), _AMBIGUOUS)
    found.counts.update(new)
    found.ends.update(zip(counts, times, strict=True))
