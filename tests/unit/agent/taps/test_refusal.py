"""When a collective of an eval is refused, and in which words."""

from __future__ import annotations

from types import SimpleNamespace

from probe.agent.taps.collectives.recorder import refusal


def refused(ranks, where="boundary", group=(0, 1, 2, 3)):
    return refusal(SimpleNamespace(ranks=ranks, where=where), "allreduce", "0", group)


def test_an_eval_on_all_ranks_of_the_job_is_not_refused():
    assert refused(None) is None


def test_an_eval_on_all_ranks_of_the_group_is_not_refused():
    assert refused([0, 1, 2, 3, 4]) is None
    assert refused([2, 3], group=(2, 3)) is None


def test_a_group_of_one_rank_is_never_refused():
    assert refused([3], group=(3,)) is None
    assert refused(None, where="now", group=(3,)) is None


def test_missing_ranks_are_named_with_the_remedy():
    why = refused([0, 2])
    assert why is not None
    assert "ranks 0-3" in why and "ranks 1, 3" in why and "group '0'" in why and "run it on all ranks" in why


def test_an_eval_that_does_not_wait_for_a_boundary_is_refused_whatever_its_ranks():
    why = refused(None, where="now")
    assert why is not None and "--now" in why and "boundary" in why
