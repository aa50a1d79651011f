"""Nesting and backward against slow and plain references, on random programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.arrays.integers import NONE
from probe.arrays.nesting import ancestors_with, covered, nearest, nest, self_time
from probe.derive import backward_batch
from probe.derive.backward import Excluded, Marks, Passes, resolve
from probe.derive.call_tree import Calls, CallTree
from probe.streams import BEGIN, BEGIN_SAME_NODE, END


@dataclass
class Span:
    start: int
    end: int
    thread: int
    parent: Span | None
    children: list[Span] = field(default_factory=list)


programs = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=25)


def run(program: list, clock: count, thread: int, ticks: list[int], parent: Span | None, done: list[Span]) -> None:
    """Spans in order of completion; a tick of 0 lets two events share a moment."""
    span = Span(next_time(clock, ticks), 0, thread, parent)
    for inner in program:
        run(inner, clock, thread, ticks, span, done)
    span.end = next_time(clock, [1])  # every span takes time
    if parent is not None:
        parent.children.append(span)
    done.append(span)


def next_time(clock: list[int], ticks: list[int]) -> int:
    clock[0] += ticks[clock[0] % len(ticks)]
    return clock[0]


@pytest.mark.slow
@given(
    st.lists(st.tuples(programs, st.integers(0, 2)), max_size=5), st.lists(st.integers(0, 2), min_size=1, max_size=7)
)
@settings(max_examples=150, deadline=None)
def test_nesting_equals_that_of_the_program(calls: list, ticks: list[int]) -> None:
    done: list[Span] = []
    clocks = {thread: [thread] for thread in range(3)}
    for program, thread in calls:
        run(program, clocks[thread], thread, ticks, None, done)
    arrays = [np.array([getattr(span, name) for span in done], np.int64) for name in ("start", "end", "thread")]
    nesting = nest(*arrays)
    place = {id(span): row for row, span in enumerate(done)}
    assert nesting.parent.tolist() == [place[id(s.parent)] if s.parent else NONE for s in done]
    own = [s.end - s.start - sum(c.end - c.start for c in s.children) for s in done]
    assert self_time(nesting, arrays[1] - arrays[0]).tolist() == own
    marked = np.array([row % 3 == 0 for row in range(len(done))], np.bool_)
    above = [_ancestors(span, place) for span in done]
    assert ancestors_with(nesting, marked).tolist() == [any(marked[row] for row in rows) for rows in above]
    assert nearest(nesting, marked).tolist() == [next((row for row in rows if marked[row]), NONE) for rows in above]


def _ancestors(span: Span, place: dict[int, int]) -> list[int]:
    rows = []
    while span.parent is not None:
        span = span.parent
        rows.append(place[id(span)])
    return rows


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 3)), max_size=30))
def test_spans_that_are_not_nested_do_no_harm(spans: list[tuple[int, int, int]]) -> None:
    start = np.array([a for a, _, _ in spans], np.int64)
    end = np.array([a + b for a, b, _ in spans], np.int64)
    nesting = nest(start, end, np.array([t for _, _, t in spans], np.int64))
    assert sum(len(rows) for rows in nesting.generations) == len(spans)
    assert ((nesting.parent >= 0) == (nesting.level > 0)).all()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6), st.lists(st.integers(0, 130), max_size=8))
def test_covered_time(gaps: list[tuple[int, int]], times: list[int]) -> None:
    start, end, at = [], [], 0
    for gap, length in gaps:
        start.append(at + gap + 1)
        end.append(start[-1] + length)
        at = end[-1]
    expected = [sum(a <= t < b for t in range(time) for a, b in zip(start, end, strict=True)) for time in times]
    assert covered(*(np.array(x, np.int64) for x in (times, start, end))).tolist() == expected


# modules 1-7 as a tree: 1 and 6 are roots
PARENTS = {1: 0, 2: 1, 3: 2, 4: 2, 5: 1, 6: 0, 7: 6}
mark = st.tuples(st.integers(1, 5), st.sampled_from([BEGIN, BEGIN, END, END, BEGIN_SAME_NODE]), st.integers(1, 7))


def line(module: int) -> list[int]:
    """The module and its callers, innermost first."""
    return [module, *line(PARENTS[module])] if module else []


def plain(passes: list, roots: list[int], recomputed: list, blocked: list, calls: dict) -> dict:
    """(pass, module, instance) -> (own, total, start), one mark and one nanosecond after the other."""
    rows: dict = {}
    for number, (begin, end, marks) in enumerate(passes):
        first = (number, roots[number], 1)
        bounds = [*(time for time, _, _ in marks), end]
        away = [*recomputed, *blocked]
        own, starts, parents = {first: free(begin, bounds[0], away)}, {first: begin}, {}
        whole = {first: free(begin, bounds[0], recomputed)}
        owner = 0
        for place, (time, kind, module) in enumerate(marks):
            if kind == BEGIN:
                owner = module
            elif kind == END and module in line(owner):
                owner = PARENTS[module]
            counts = begun_by(marks, place)
            if kind != END:
                climb(number, module, counts, calls, time, own, starts, parents)
            key = climb(number, owner, counts, calls, time, own, starts, parents) if owner else first
            own[key] += free(time, bounds[place + 1], away)
            whole[key] = whole.get(key, 0) + free(time, bounds[place + 1], recomputed)
        totals = {key: whole.get(key, 0) for key in own}
        for key in sorted(own, key=lambda key: -len(line(key[1]))):
            if key in parents:
                totals[parents[key]] += totals[key]
        rows.update({key: (own[key], totals[key], starts[key]) for key in own})
    return rows


def begun_by(marks: list, place: int) -> dict[int, int]:
    """How often each module has begun once all hooks of the mark's node have run."""
    after = place + 1
    while after < len(marks) and marks[after][1] == BEGIN_SAME_NODE:
        after += 1
    counts: dict[int, int] = {}
    for _, kind, module in marks[:after]:
        counts[module] = counts.get(module, 0) + (kind != END)
    return counts


def climb(
    number: int, module: int, counts: dict, calls: dict, time: int, own: dict, starts: dict, parents: dict
) -> tuple:
    """Have the instance of the module that is under way, and those of its callers."""
    most = calls.get((number, module), 10**9)
    key = number, module, max(1, min(counts.get(module, 0), most))
    if key not in own:
        own[key], starts[key] = 0, time
        if PARENTS[module]:
            parents[key] = climb(number, PARENTS[module], counts, calls, time, own, starts, parents)
    return key


def possible(program: list) -> list:
    """BEGIN_SAME_NODE follows the begin of another module, and at one node a module begins but once."""
    marks, at_node = [], set()
    for gap, kind, module in program:
        kind = BEGIN if kind == BEGIN_SAME_NODE and (module in at_node or not at_node) else kind
        at_node = {*at_node, module} if kind == BEGIN_SAME_NODE else {module} if kind == BEGIN else set()
        marks.append((gap, kind, module))
    return marks


def free(begin: int, end: int, recomputed: list) -> int:
    return sum(not any(a <= t < b for a, b in recomputed) for t in range(begin, end))


@pytest.mark.long
@pytest.mark.slow
@given(
    st.lists(st.lists(mark, max_size=14), max_size=4),
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 6), st.booleans()), max_size=5),
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(1, 7)), st.integers(1, 2), max_size=4),
)
@settings(max_examples=400, deadline=None)
def test_backward_equals_the_plain_reading(programs: list, gaps: list, calls: dict) -> None:
    passes, at = [], 0
    for program in programs:
        begin, marks = at + 3, []
        at = begin + 2
        for gap, kind, module in possible(program):
            at += gap
            marks.append((at, kind, module))
        at += 4
        passes.append((begin, at, marks))
    recomputed, blocked, moment = [], [], 0
    for gap, length, blocks in gaps:
        (blocked if blocks else recomputed).append((moment + gap, moment + gap + length))
        moment += gap + length
    tree = CallTree.of(PARENTS)
    roots = [line(marks[0][2])[-1] if marks else 0 for _, _, marks in passes]
    flat = [(t, kind, module, number) for number, (_, _, marks) in enumerate(passes) for t, kind, module in marks]
    array = np.array(flat, np.int64).reshape(-1, 4)
    got = resolve(
        Passes(*(np.array([p[i] for p in passes], np.int64) for i in (0, 1)), np.zeros(len(passes), np.int64)),
        Marks(array[:, 0], np.zeros(len(flat), np.int64), array[:, 1], array[:, 3], tree.index(array[:, 2])),
        tree,
        tree.index(np.array(roots, np.int64)),
        Excluded(
            *(
                tuple(np.array([each[i] for each in sorted(times)], np.int64) for i in (0, 1))
                for times in (recomputed, recomputed + blocked)
            )
        ),
        Calls(*(np.array([k[i] for k, n in calls.items() for _ in range(n)], np.int64) for i in (0, 1))),
    )
    expected = plain(passes, roots, recomputed, blocked, calls)
    found = sorted(
        zip(*(x.tolist() for x in (got.number, tree.subject(got.module), got.own, got.total, got.start)), strict=True)
    )
    assert found == sorted((n, m, own, total, start) for (n, m, _), (own, total, start) in expected.items())
    for number, (begin, end, _) in enumerate(passes):
        assert got.own[got.number == number].sum() == free(begin, end, recomputed + blocked)


@pytest.mark.long
@pytest.mark.slow
@given(
    st.lists(st.lists(mark, max_size=10), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 3)), max_size=40),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 6)), max_size=5),
    st.dictionaries(st.tuples(st.integers(0, 40), st.integers(1, 7)), st.integers(1, 2), max_size=6),
)
@settings(max_examples=300, deadline=None)
def test_passes_of_one_shape_are_as_each_by_itself(programs: list, order: list, gaps: list, calls: dict) -> None:
    passes, marks, at = [], [], 0
    for number, (which, slow, thread) in enumerate(order):
        begin, at = at + 3, at + 5
        for place, (gap, kind, module) in enumerate(possible(programs[which % len(programs)])):
            at += gap * slow
            marks.append((at, thread + place % 2, kind, number, module))
        passes.append((begin, at + slow, thread))
        at += slow + 4
    starts = np.cumsum([gap + length for gap, length in gaps], dtype=np.int64)
    recomputed = (starts, starts + np.array([length for _, length in gaps], np.int64) // 2)
    excluded = Excluded(tuple(each[::2] for each in recomputed), recomputed)
    tree = CallTree.of(PARENTS)
    array = np.array(marks, np.int64).reshape(-1, 5)
    roots = tree.index(np.array([programs[which % len(programs)][0][2] if programs[which % len(programs)] else 0
                                 for which, _, _ in order], np.int64))  # fmt: skip
    asked = (
        Passes(*(np.array([each[i] for each in passes], np.int64) for i in range(3))),
        Marks(*(array[:, i] for i in range(4)), tree.index(array[:, 4])),
        tree,
        tree.chain[roots, 0],
        excluded,
        Calls(*(np.array([key[i] for key, n in calls.items() for _ in range(n) if key[0] <= len(passes)], np.int64)
                for i in range(2))),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward_batch, "LEAST", 2)
        fields = ("number", "module", "start", "thread", "own", "total")
        together, single = (sorted(zip(*(getattr(found, field).tolist() for field in fields), strict=True))
                            for found in (backward_batch.resolve_by_shape(*asked), resolve(*asked)))  # fmt: skip
    assert together == single
