"""What differs between two sides of runs: each figure with an interval, and those that differ by more than chance.

Called by probe.compare.  The step time is judged by itself; its parts, dozens of comparisons, by intervals that are
wider for their number.  Invariant: what one side alone has is listed, not compared, and what too few steps tell has no
interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..change.steps import alike
from ..figures import pct
from ..rule import Rule
from ..rules import ON_TABLES
from ..watched import Watched
from .contrasts import Contrasts, Sides
from .findings import findings
from .report import Compared, ComparedSide
from .run import KINDS, Run, Seen
from .settings import settings_that_differ
from .statistics import LEAST_RUNS, Contrast, believed

RUNS_DIFFER = 0.01  # of a step: runs of one job on an idle host do by about as much
_BUSY = 0.05  # of the time, waiting for a core: worth a note


def compare(
    before: Sequence[Run], after: Sequence[Run], runs_differ: float = RUNS_DIFFER,
    rules: Sequence[Rule[Watched]] = ON_TABLES,
) -> Compared:  # fmt: skip
    """runs_differ: by how much runs of one job are assumed to differ, a standard deviation, where fewer than three runs
    a side do not show it; not used if all runs are stretches of the same one.  rules: those asked of each run.

    Raises SilentError (few-steps), QueryError, Interrupted.  Cost: some 40 queries a run, most of them of the rules.
    """
    sides = [Seen(run) for run in before], [Seen(run) for run in after]
    is_one = len({id(run.tables) for run in (*before, *after)}) == 1
    made = Contrasts(sides, 0.0 if is_one else runs_differ)
    chosen, notes = alike([run.steps for run in sides[0]], [run.steps for run in sides[1]])
    details = {kind: made.parts(kind) for kind in KINDS} | {"phases": made.phases(), "memory": made.memory()}
    level = believed([each.p for kind in details.values() for each in kind if isinstance(each, Contrast)])
    told = {kind: [made.told(each, level) for each in found] for kind, found in details.items()}
    is_measured = is_one or min(len(before), len(after)) >= LEAST_RUNS
    return Compared(
        _side(sides[0]), _side(sides[1]), made.step(chosen), made.samples(chosen), told["phases"], told["modules"],
        told["collectives"], told["memory"], made.only(0), made.only(1), findings(sides, rules),
        settings_that_differ(*sides), None if is_measured else runs_differ, [*notes, *_notes(sides)],
    )  # fmt: skip


def _side(runs: Sequence[Seen]) -> ComparedSide:
    return ComparedSide(
        [each.run.name for each in runs], [each.ranks for each in runs], sum(len(each.steps["step"]) for each in runs),
        sum(each.left_out for each in runs), float(np.mean([each.waits for each in runs])),
    )  # fmt: skip


def _notes(sides: Sides) -> Iterator[str]:
    before, after = (float(np.mean([run.waits for run in runs])) for runs in sides)
    if max(before, after) >= _BUSY:
        yield (
            f"The training waited for a core for {pct(before)} of the time in A, {pct(after)} in B: intervals are "
            "wider for that.  Compare on an idle host, or three runs a side or more."
        )
    if len({run.ranks for runs in sides for run in runs}) > 1:
        yield "The world sizes differ: times are means over the ranks, samples per second those of all ranks."
