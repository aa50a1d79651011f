"""Many comparisons at once: which of them may be believed, and limits that a change must be beyond for certain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.diagnose.change.blocks import Estimate
from probe.diagnose.change.report import Measure
from probe.diagnose.compare.limits import Limit
from probe.diagnose.compare.report import Compared, ComparedSide
from probe.diagnose.compare.statistics import Contrast, Side, believed, side
from probe.errors import SilentError, UsageError

means, errors = st.floats(0.5, 2.0), st.floats(1e-4, 0.3)
freedoms, levels = st.floats(2.0, 1e6), st.floats(0.9, 0.9999)


@given(means, means, errors, freedoms, levels)
def test_a_difference_is_told_exactly_where_its_intervals_exclude_none(
    before: float, after: float, error: float, freedom: float, level: float
) -> None:
    sides = [Side(mean, error**2, freedom) for mean in (before, after)]
    found = Contrast("x", "s", sides[0], sides[1], (50, 50)).measure(level, 0.0)
    assert found.difference_low is not None and found.difference_high is not None
    assert found.ratio_low is not None and found.ratio_high is not None
    ends = (found.difference_low, found.difference_high, found.ratio_low - 1, found.ratio_high - 1)
    if min(map(abs, ends)) > 1e-9:
        excluded = (
            not found.difference_low <= 0 <= found.difference_high and not found.ratio_low <= 1 <= found.ratio_high
        )
        assert found.differs == excluded


@given(st.lists(st.floats(0, 1) | st.floats(0, 0.01), min_size=1, max_size=60))
def test_those_believed_are_those_of_benjamini_and_hochberg(chances: list[float]) -> None:
    level, count = believed(chances), len(chances)
    by_rank = [place for place, p in enumerate(sorted(chances), 1) if p <= 0.01 * place / count]
    assert sum(p <= 1 - level + 1e-12 for p in chances) == max(by_rank, default=0)


def test_no_comparison_is_believed_more_easily_than_by_itself() -> None:
    assert believed([]) == 0.99 and believed([0.5]) == 0.99 and believed([0.5] * 20) == pytest.approx(0.9995)


@pytest.mark.parametrize(("freedom", "t"), [(3, 3.182), (5, 2.571), (10, 2.228), (1e6, 1.960)])
def test_intervals_are_as_wide_as_students_t(freedom: float, t: float) -> None:
    found = Contrast("x", "s", Side(1, 0.0, freedom), Side(2, 1.0, freedom), (50, 50)).measure(0.95, 0)
    assert found.difference_high == pytest.approx(1 + t, rel=0.02)


def test_what_is_almost_nothing_has_a_wide_interval() -> None:
    found = Contrast("x", "s", Side(1e-9, 1.0, 3), Side(1, 1.0, 3), (50, 50)).measure(0.95, 0)
    assert found.ratio_high is not None and 1e9 < found.ratio_high < float("inf") and not found.differs


def test_what_never_varies_has_an_interval_of_one_point() -> None:
    same, more = (Contrast("x", "s", Side(1, 0, 9), Side(mean, 0, 9), (50, 50)) for mean in (1.0, 1.5))
    assert same.p == 1 and more.p == 0 and more.measure(0.99, 0).ratio_low == 1.5


def test_a_difference_too_small_to_matter_is_not_told() -> None:
    made = Contrast("x", "s", Side(1, 1e-8, 99), Side(1.005, 1e-8, 99), (50, 50))
    assert made.measure(0.95, 0.001).differs and not made.measure(0.95, 0.01).differs


def test_a_side_of_few_runs_is_as_unsure_as_runs_are_assumed_to_differ() -> None:
    runs = [Estimate(mean, 0.0001, 20) for mean in (1.0, 1.1, 1.2)]
    assert side(runs[:1], [0.02]).variance == pytest.approx(0.0001 + 0.0004)
    assert side(runs[:2], [0.02] * 2).variance == pytest.approx((0.0001 + 0.0004) / 2)
    measured = side(runs, [0.02] * 3)
    assert measured.variance == pytest.approx(np.var([1.0, 1.1, 1.2], ddof=1) / 3) and measured.freedom == 2


STEP = Measure("step_time", "s", 90, 80, 0.1, 0.11, 0.01, 0.006, 0.014, 1.1, 1.06, 1.14, True)
MEMORY = Measure("rss_mb", "MB", 90, 80, 900.0, 1000.0, 100.0, 80.0, 120.0, 1.11, 1.09, 1.13, True)
UNKNOWN = Measure("forward", "s", 20, 80, 0.1, 0.2)
NOBODY = ComparedSide([], [], 0, 0, 0.0)
COMPARED = Compared(NOBODY, NOBODY, STEP, None, [UNKNOWN], [], [], [MEMORY], [], [], [], [], None)


@pytest.mark.parametrize(
    ("text", "exceeded"),
    [("step_time > 5%", True), ("step_time > 7 %", False), ("step_time>5ms", True), ("step_time > 7ms", False),
     ("step_time < -5%", False), ("rss_mb > 50MB", True), ("rss_mb > 100MB", False), ("rss_mb < 121 MB", True)],
)  # fmt: skip
def test_a_limit_is_exceeded_only_by_the_whole_interval(text: str, exceeded: bool) -> None:
    assert Limit.of(text).is_exceeded(COMPARED) is exceeded


def test_faster_is_not_slower() -> None:
    faster = replace(COMPARED, step=replace(STEP, ratio_low=0.88, ratio_high=0.92))
    assert Limit.of("step_time < -5%").is_exceeded(faster) and not Limit.of("step_time > 5%").is_exceeded(faster)


@pytest.mark.parametrize("text", ["step_time", "> 5%", "step_time > five", "step_time > 5", "step_time = 5%"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no limit") as raised:
        Limit.of(text)
    assert "step_time > 5%" in raised.value.hint


def test_a_limit_of_what_is_not_there_or_not_known_says_so() -> None:
    with pytest.raises(UsageError, match="Nothing that both sides have is called 'step_tim'") as raised:
        Limit.of("step_tim > 5%").is_exceeded(COMPARED)
    assert "step_time" in raised.value.hint
    with pytest.raises(UsageError, match="is not measured in MB"):
        Limit.of("step_time > 5MB").is_exceeded(COMPARED)
    with pytest.raises(SilentError, match="cannot be said: 20 steps of A tell it and 80 of B"):
        Limit.of("forward > 5%").is_exceeded(COMPARED)
