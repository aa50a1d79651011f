"""Sampling: blocks of ten of the job's own steps, without a period, thinned until the budget is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe import settings
from probe.agent.steps import sampling as agent_sampling
from probe.agent.steps.sampling import FIRST, Sampling, is_chosen
from probe.errors import UsageError
from probe.streams import BARE, BLOCK, EVERY, EXTRA, SAMPLED, UNTIMED

MS = 1_000_000


def flags_of(sampling: Sampling, steps: range, cost_ns: int = 0, step_ns: int = 100 * MS) -> dict[int, int]:
    """The flags of each step, requested as Steps does; the taps time themselves when asked to."""
    found, due, flags = dict[int, int](), steps.start, 0

    def gate(flags: int, measured: bool) -> None:
        if measured:
            sampling.spend(cost_ns)

    sampling.switch_taps = gate
    for step in steps:
        if step >= due:
            flags, after = sampling.begin_step(step, step - steps.start, lambda: step_ns)
            assert after > 0
            due = step + after
        found[step] = flags
    return found


def sampled(flags: dict[int, int]) -> list[int]:
    return [step for step, flag in flags.items() if flag & SAMPLED]


def test_the_first_twenty_steps_are_all_sampled_wherever_the_attach_fell() -> None:
    flags = flags_of(Sampling(), range(1003, 1203), cost_ns=50 * MS)
    assert sampled(flags)[:FIRST] == list(range(1003, 1003 + FIRST))


@pytest.mark.parametrize(
    ("cost_us", "every"), [(0, 1), (140, 1), (150, 2), (570, 4), (700, 8), (1450, 16), (400_000, 128)]
)
def test_n_is_the_smallest_that_keeps_the_budget(cost_us: int, every: int) -> None:
    sampling = Sampling()
    # Steps take 100 ms; three times the measured cost goes unseen.  0.6 of 1 % is 600 µs; phase clocks take 15 of it.
    flags_of(sampling, range(100), cost_ns=cost_us * 1000)
    assert sampling.every == every


@pytest.mark.parametrize(("step_us", "flags"), [(400, UNTIMED), (4_900, UNTIMED), (5_100, 0), (100_000, 0)])
def test_phases_of_steps_too_short_for_their_clocks_are_timed_only_in_sampled_steps(step_us: int, flags: int) -> None:
    found = flags_of(Sampling(), range(1000, 2000), cost_ns=20 * step_us, step_ns=1000 * step_us)
    assert {found[step] for step in range(1100, 1250) if not found[step] & SAMPLED} == {flags}
    assert sampled(found)


def test_a_core_lost_while_a_step_is_measured_does_not_thin_the_samples() -> None:
    sampling, costs = Sampling(), iter([125_000, 90 * MS, 125_000, 50 * MS] * 10)
    sampling.switch_taps = lambda flags, measured: sampling.spend(next(costs)) if measured else None
    for step in range(400):
        if step % BLOCK in (0, 5, 6):
            sampling.begin_step(step, step, lambda: 100 * MS)
    assert sampling.every == 1


def lasting(sampled_ms: Callable[[int], float], plain_ms: Callable[[int], float], steps: int) -> Sampling:
    """Auto, after so many steps of a job whose steps take that long; the taps measure 10 us in each."""
    now, flags, due = 0, 0, 0
    sampling = Sampling(lambda: now)
    sampling.switch_taps = lambda flags, measured: sampling.spend(10_000) if measured else None
    for step in range(steps):
        if step >= due:
            flags, after = sampling.begin_step(step, step, lambda step=step: round(plain_ms(step) * MS))  # type: ignore[misc]
            due = step + after
        now += round((sampled_ms if flags & SAMPLED else plain_ms)(step) * MS)
    return sampling


def test_sampled_steps_that_are_plainly_longer_are_thinned_though_the_taps_measured_little() -> None:
    assert lasting(lambda step: 100, lambda step: 100, 5000).every == 1
    assert lasting(lambda step: 110, lambda step: 100, 5000).every == 1
    assert lasting(lambda step: 130, lambda step: 100, 100).every == 64
    assert lasting(lambda step: 300, lambda step: 100, 100).every == 128
    assert lasting(lambda step: 300 if step > 1000 else 100, lambda step: 100, 5000).every == 128


def test_one_long_block_or_steps_that_grow_do_not_thin_the_samples() -> None:
    for slow in range(10):
        once = range(slow * BLOCK, slow * BLOCK + 2 * BLOCK)
        assert lasting(lambda step, once=once: 300 if step in once else 100, lambda step: 100, 400).every == 1  # type: ignore[misc]
    assert lasting(lambda step: 100 + step, lambda step: 100 + step, 400).every == 1
    assert lasting(lambda step: 500 - step, lambda step: 500 - step, 400).every == 1


def test_what_was_thinned_for_a_while_is_sampled_again() -> None:
    assert lasting(lambda step: 300 if step < 500 else 100, lambda step: 100, 400).every == 128
    assert lasting(lambda step: 300 if step < 500 else 100, lambda step: 100, 6000).every == 1


def test_auto_leaves_two_blocks_at_the_beginning_and_then_one_in_64_if_every_block_is_sampled() -> None:
    flags = flags_of(Sampling(), range(6400))
    left = [step // BLOCK for step, flag in flags.items() if not flag & SAMPLED][::BLOCK]
    assert left[:2] == [3, 5] and [block // 64 for block in left[2:]] == list(range(10))
    assert {flags[step] for step in range(6400) if step // BLOCK in left[2:]} == {BARE}


def test_a_smaller_budget_samples_less() -> None:
    sampling = Sampling()
    flags_of(sampling, range(100), cost_ns=125_000)
    sampling.set({"budget_pct": 0.1}, 100 * MS)
    assert sampling.every == 16


def test_a_smaller_n_for_some_steps_ends_by_itself() -> None:
    sampling = Sampling()
    sampling.set({"sample": 128}, None)
    usual = flags_of(sampling, range(4000))
    sampling = Sampling()
    sampling.set({"sample": 128}, None)
    sampling.set({"sample": 1, "for_steps": 300}, None)
    flags = flags_of(sampling, range(4000))
    assert sampled(flags)[:300] == list(range(300)) and sampling.settings()["sample"] == 128
    assert [step for step in sampled(flags) if step >= 300] == [step for step in sampled(usual) if step >= 300]


@pytest.mark.parametrize(("every", "steps"), [(8, 150), (1, 50)])
def test_what_is_asked_for_some_of_these_steps_takes_none_of_them(every: int, steps: int) -> None:
    """A watch asks for as many as it needs, although all are sampled for the next one."""
    sampling = Sampling()
    sampling.set({"sample": 128}, None)
    sampling.set({"sample": 1, "for_steps": 300}, None)
    flags = flags_of(sampling, range(100))
    sampling.set({"sample": every, "for_steps": steps}, None)
    flags |= flags_of(sampling, range(100, 300))
    assert sampled(flags) == list(range(300))
    sampling.set({"sample": 8, "for_steps": 1000}, None)
    assert 0 < len(sampled(flags_of(sampling, range(300, 1300)))) < 500


def test_after_a_smaller_n_for_fewer_steps_a_larger_one_holds_for_the_rest() -> None:
    sampling = Sampling()
    sampling.set({"sample": 128}, None)
    sampling.set({"sample": 8, "for_steps": 2000}, None)
    sampling.set({"sample": 1, "for_steps": 300}, None)
    flags = flags_of(sampling, range(2000))
    chosen = [step for step in range(300, 2000) if is_chosen(step // BLOCK, 8)]
    assert sampled(flags) == [*range(300), *chosen]


@pytest.mark.parametrize("sample", [128, "auto"])
def test_n_without_a_number_of_steps_ends_what_holds_for_some(sample: object) -> None:
    sampling = Sampling()
    sampling.set({"sample": 1, "for_steps": 5000}, None)
    sampling.set({"sample": sample}, None)
    assert len(sampled(flags_of(sampling, range(1280), cost_ns=100 * MS))) < 100
    sampling.set({"sample": 128}, None)
    sampling.set({"sample": 1, "for_steps": 300}, None)
    assert sampled(flags_of(sampling, range(300))) == list(range(300))


@pytest.mark.parametrize("every", EVERY)
def test_of_every_window_of_n_blocks_one_is_sampled_whole(every: int) -> None:
    sampling = Sampling()
    sampling.set({"sample": every}, None)
    flags = flags_of(sampling, range(2560 * BLOCK))
    blocks = Counter(step // BLOCK for step in sampled(flags) if not flags[step] & EXTRA)
    assert {*blocks.values()} == {BLOCK}
    assert [block // every for block in sorted(blocks)] == list(range(2560 // every))
    extra = {step for step in flags if flags[step] & EXTRA}
    assert extra == (set() if is_chosen(10, every) else set(range(100, 110)))


def test_the_steps_that_people_look_at_are_sampled_up_to_a_large_n() -> None:
    assert all(is_chosen(block, every) for block in (10, 20) for every in EVERY if every <= 16)


def test_what_a_larger_n_samples_is_a_part_of_what_a_smaller_one_does() -> None:
    for few, many in pairwise(EVERY[::-1]):
        assert {b for b in range(-500, 5000) if is_chosen(b, few)} < {
            b for b in range(-500, 5000) if is_chosen(b, many)
        }


def test_the_first_steps_count_as_extra_once_n_has_grown() -> None:
    flags = flags_of(Sampling(), range(1003, 1203), cost_ns=50 * MS)
    extra = [step for step, flag in flags.items() if flag & EXTRA]
    assert extra and set(extra) <= set(sampled(flags)) and extra[-1] < 1003 + FIRST + BLOCK
    assert all(not is_chosen(step // BLOCK, EVERY[-1]) for step in extra)


@pytest.mark.parametrize("period", [50, 100, 128])
def test_periodic_work_has_the_share_in_the_sampled_steps_that_it_has_in_all(period: int) -> None:
    """Of 50,000 steps at 16, with work in every 50th, 100th or 128th step that is a third of the time."""
    steps, errors = np.arange(50_000), list[float]()
    blocks = np.array([is_chosen(block, 16) for block in range(5000)])
    chosen = blocks[steps // BLOCK]
    for offset in range(0, period, max(1, period // 20)):
        heavy = (steps % period == offset) * period / 2
        share = heavy.sum() / (heavy + 1).sum()
        found = heavy[chosen].sum() / (heavy[chosen] + 1).sum()
        of_blocks = heavy[chosen].reshape(-1, BLOCK).sum(axis=1)
        error = of_blocks.std() / np.sqrt(len(of_blocks)) / BLOCK * (1 - share) ** 2
        assert abs(found - share) <= 3 * error
        errors.append(found - share)
    assert abs(np.mean(errors)) <= 0.01


@pytest.mark.parametrize("every", EVERY[1:])
def test_one_block_in_64_is_bare_and_none_if_every_block_is_sampled(every: int) -> None:
    sampling = Sampling()
    sampling.set({"sample": every}, None)
    flags = flags_of(sampling, range(6400))
    bare = [step // BLOCK for step, flag in flags.items() if flag == BARE]
    assert len(bare) == 100 and [block // 64 for block in sorted({*bare})] == list(range(10))
    assert len({block % 64 for block in bare}) > 5
    sampling.set({"sample": 1}, None)
    assert set(flags_of(sampling, range(5000)).values()) == {SAMPLED}


def test_the_taps_time_themselves_in_one_step_of_a_sampled_block_and_only_for_auto() -> None:
    sampling, measured = Sampling(), list[int]()
    for sample in ("auto", 1):
        sampling.set({"sample": sample}, None)
        measured.clear()
        due = 0
        for step in range(30):
            if step >= due:
                sampling.switch_taps = lambda flags, timed, step=step: measured.append(step) if timed else None  # type: ignore[misc]
                due = step + sampling.begin_step(step, step, lambda: MS)[1]
        assert measured == ([5, 15, 25] if sample == "auto" else [])


@pytest.mark.slow
@given(
    st.sampled_from(sorted(settings.VALID.keys() - {"step"})),  # which the reader sets, by other means
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text()),
)
def test_agent_and_reader_accept_the_same_values(name: str, value: object) -> None:
    sampling = Sampling()
    before = sampling.settings()
    try:
        checked = settings.checked_settings({name: value})
    except UsageError as error:
        assert settings.VALID[name] in str(error)
        with pytest.raises(ValueError, match=name):
            sampling.set({"backward": False, name: value} if name != "backward" else {name: value}, None)
        assert sampling.settings() == before
    else:
        sampling.set(checked, None)
        assert sampling.settings().get(name, checked[name]) == checked[name]


def test_agent_and_reader_use_the_same_constants() -> None:
    assert agent_sampling.EVERY is settings.EVERY is EVERY == (1, 2, 4, 8, 16, 32, 64, 128)
    assert agent_sampling.BLOCK is BLOCK == 10


@pytest.mark.parametrize(("asked", "taken"), [(1, 1), (3, 4), (5, 8), (100, 128), (128, 128), ("auto", "auto")])
def test_other_numbers_are_taken_as_the_next_power_of_two(asked: object, taken: object) -> None:
    assert settings.checked_settings({"sample": asked}) == {"sample": taken}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sample=1"], {"sample": 1}),
        (["sample=AUTO", "budget=0.5%"], {"sample": "auto", "budget_pct": 0.5}),
        (["budget=2", "backward=off"], {"budget_pct": 2.0, "backward": False}),
        (["backward=on"], {"backward": True}),
    ],
)
def test_settings_are_read_as_users_write_them(words: list[str], expected: dict[str, object]) -> None:
    assert settings.from_words(words) == expected


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sample=0"], "sample=0 is not valid. Valid: auto, or N from 1 to 128"),
        (["sample=129"], "sample=129 is not valid"),
        (["sample="], "sample= is not valid"),
        (["budget=0"], "a number above 0"),
        (["budget=nan%"], "a number above 0"),
        (["budget=abc"], "a number above 0"),
        (["backward=maybe"], "on or off"),
        (
            ["sampel=1"],
            "No setting named 'sampel'. Did you mean sample? Settings: backward, budget, for, sample, step.",
        ),
        (["sample=1", "sample=2"], "sample is given twice"),
    ],
)
def test_an_impossible_setting_names_the_valid_ones(words: list[str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings.from_words(words)
    assert told in str(caught.value)
