"""A fault in words, whatever the exception does when it is asked for them."""

from __future__ import annotations

import pytest

from probe.agent.fault import in_words
from probe.agent.taps.collectives import flight_recorder


class Mute(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_without_words_is_told_by_its_class_and_a_long_one_in_part() -> None:
    assert in_words(ValueError("x")) == "ValueError('x')" and in_words(Mute()) == "Mute"
    assert len(in_words(ValueError("x" * 5000))) < 1010


def test_a_recorder_that_raises_such_an_error_is_told_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def dump() -> str:
        raise Mute

    played = type("c10d", (), {"_dump_fr_trace_json": staticmethod(dump)})
    monkeypatch.setitem(flight_recorder.sys.modules, "torch._C._distributed_c10d", played)  # type: ignore[attr-defined]
    assert flight_recorder.dumps() == ([], "Mute")
