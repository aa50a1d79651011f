"""Sampling: blocks of ten steps on the grid of the job's own numbers, thinned until the budget is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe import settings
from probe.agent.steps import sampling as agent_sampling
from probe.agent.steps.sampling import FIRST, Sampling
from probe.errors import UsageError
from probe.streams import BARE, BLOCK, EVERY, SAMPLED, UNTIMED

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


@pytest.mark.parametrize(("cost_us", "every"), [(0, 1), (140, 1), (150, 2), (700, 5), (1450, 10), (400_000, 100)])
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


def test_a_smaller_budget_samples_less() -> None:
    sampling = Sampling()
    flags_of(sampling, range(100), cost_ns=125_000)
    sampling.set({"budget_pct": 0.1}, 100 * MS)
    assert sampling.every == 20


@pytest.mark.parametrize("every", EVERY)
def test_every_nth_block_of_ten_is_sampled_whole_on_the_grid_of_the_jobs_steps(every: int) -> None:
    sampling = Sampling()
    sampling.set({"sample": every}, None)
    flags = flags_of(sampling, range(7, 7 + 2000 * BLOCK))
    assert sampled(flags) == [step for step in flags if (step // BLOCK - 10) % every == 0]


@pytest.mark.parametrize("every", EVERY[1:])
def test_one_block_in_fifty_is_bare_and_none_if_every_block_is_sampled(every: int) -> None:
    sampling = Sampling()
    sampling.set({"sample": every}, None)
    flags = flags_of(sampling, range(5000))
    assert sum(flag == BARE for flag in flags.values()) == 100
    sampling.set({"sample": 1}, None)
    assert set(flags_of(sampling, range(5000)).values()) == {SAMPLED}


def test_the_taps_time_themselves_in_one_step_of_a_sampled_block_and_only_for_auto() -> None:
    sampling, measured = Sampling(), list[int]()
    for sample in ("auto", 1):
        sampling.set({"sample": sample}, None)
        measured.clear()
        due = 0
        for step in range(40):
            if step >= due:
                sampling.switch_taps = lambda flags, timed, step=step: measured.append(step) if timed else None  # type: ignore[misc]
                due = step + sampling.begin_step(step, step, lambda: MS)[1]
        assert measured == ([5, 15, 25, 35] if sample == "auto" else [])


@pytest.mark.slow
@given(
    st.sampled_from(sorted(settings.VALID)), st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text())
)
def test_agent_and_reader_accept_the_same_values(name: str, value: object) -> None:
    sampling = Sampling()
    before = sampling.settings()
    try:
        settings.checked_settings({name: value})
    except UsageError as error:
        assert settings.VALID[name] in str(error)
        with pytest.raises(ValueError, match=name):
            sampling.set({"backward": False, name: value} if name != "backward" else {name: value}, None)
        assert sampling.settings() == before
    else:
        sampling.set({name: value}, None)
        assert sampling.settings()[name] == value


def test_agent_and_reader_use_the_same_constants() -> None:
    assert agent_sampling.EVERY is settings.EVERY is EVERY == (1, 2, 5, 10, 20, 50, 100)
    assert agent_sampling.BLOCK is BLOCK == 10


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
        (["sample=3"], "sample=3 is not valid. Valid: auto, or one of 1, 2, 5, 10, 20, 50, 100"),
        (["sample="], "sample= is not valid"),
        (["budget=0"], "a number above 0"),
        (["budget=nan%"], "a number above 0"),
        (["budget=abc"], "a number above 0"),
        (["backward=maybe"], "on or off"),
        (["sampel=1"], "No setting named 'sampel'. Did you mean sample? Settings: backward, budget, sample."),
        (["sample=1", "sample=2"], "sample is given twice"),
    ],
)
def test_an_impossible_setting_names_the_valid_ones(words: list[str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings.from_words(words)
    assert told in str(caught.value)
