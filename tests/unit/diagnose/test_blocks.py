"""Intervals over blocks of steps: they hold the truth, and claim no difference where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.diagnose.change.blocks import LEAST_STEPS, means, medians, rates

PAIRS = 40


def steps(seed: int, count: int, phi: float = 0.0, every: int = 0) -> Any:
    """Durations around 1 with 5 % noise, each like the one before by `phi`; every so many, one takes three."""
    chance = np.random.default_rng(seed)
    noise = 0.05 * np.sqrt(1 - phi**2) * chance.standard_normal(count + 100)
    for at in range(1, len(noise)):
        noise[at] += phi * noise[at - 1]
    found = 1 + noise[100:]
    if every:
        found[chance.integers(every) :: every] += 2
    return found


@pytest.mark.parametrize(("phi", "every"), [(0.0, 0), (0.5, 0), (0.9, 0), (0.5, 50)])
def test_a_difference_is_claimed_only_where_there_is_one_and_the_interval_holds_it(phi: float, every: int) -> None:
    pairs = [(steps(2 * seed, 200, phi, every), steps(2 * seed + 1, 200, phi, every)) for seed in range(PAIRS)]
    assert sum(means(*pair).differs for pair in pairs) <= 0.1 * PAIRS
    halved = [means(before, after / 2) for before, after in pairs]
    assert all(each.differs for each in halved)
    held = [each.ratio_low <= 0.5 <= each.ratio_high for each in halved if each.ratio_low and each.ratio_high]
    assert sum(held) >= 0.9 * PAIRS


def test_single_steps_drawn_instead_of_blocks_would_claim_what_is_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(steps(2 * seed, 200, 0.9), steps(2 * seed + 1, 200, 0.9)) for seed in range(PAIRS)]
    widths = [means(*pair).difference_high - means(*pair).difference_low for pair in pairs]
    naive = 2 * 1.96 * 0.05 * np.sqrt(2 / 200)
    assert np.median(widths) > 3 * naive  # 4.4 times as wide, were the correlation known


def test_ten_percent_are_found_in_few_steps() -> None:
    assert all(means(steps(seed, 40, 0.3), 0.9 * steps(seed + 1000, 40, 0.3)).differs for seed in range(PAIRS))


def test_steps_that_are_long_at_one_distance_hardly_widen_the_interval() -> None:
    pairs = [(steps(2 * seed, 230, every=50), steps(2 * seed + 1, 430, every=50)) for seed in range(PAIRS)]
    assert not any(means(*pair).differs for pair in pairs)
    before, after = (np.tile(steps(seed, 50) + 2 * (np.arange(50) == 20), 8) for seed in range(2))
    assert means(before, 0.97 * after).differs


def test_a_rare_long_step_does_not_hide_what_the_median_shows() -> None:
    before, after = steps(1, 100), 0.9 * steps(2, 100)
    before[30] += 50
    assert not means(before, after).differs and medians(before, after).differs


def test_the_same_steps_give_the_same_answer() -> None:
    pair = steps(1, 100), steps(2, 100)
    assert means(*pair) == means(*pair) and medians(*pair) == medians(*pair)


def test_steps_that_never_vary_have_an_interval_of_one_point() -> None:
    ones = np.ones(LEAST_STEPS)
    found = means(ones, ones / 2)
    assert (found.difference_low, found.difference_high, found.ratio_low, found.ratio_high) == (-0.5, -0.5, 0.5, 0.5)
    assert found.differs and not means(ones, ones).differs
    assert not means(0.1 * ones, np.full(LEAST_STEPS + 13, 0.1)).differs


def test_what_did_not_take_time_before_has_no_ratio() -> None:
    found = means(np.zeros(50), steps(1, 50))
    assert found.ratio is None and found.differs


def test_a_rate_is_the_sum_of_amounts_over_that_of_seconds() -> None:
    seconds = steps(1, 100)
    found = rates((seconds, np.full(100, 8.0)), (seconds / 2, np.full(100, 8.0)))
    assert found.before == pytest.approx(800 / seconds.sum()) and found.ratio == pytest.approx(2) and found.differs
