"""Which agents a recorder looks for, and when its job is over; processes, agents and the job are played."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from probe.client.endpoints import Address, Resolved
from probe.errors import EndpointError
from probe.record import recorder
from probe.record.recorder import Order, Recorder, agents_of


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """pid -> "" if it has an agent, else the code of the error."""
    codes = {"4250": "", "4251": "not-attached"}

    def resolve(pid: str) -> Resolved:
        if codes[pid]:
            raise EndpointError(f"No agent in pid {pid}.", code=codes[pid])
        return Resolved(pid, [Address(f"ipc://{pid}")])

    monkeypatch.setattr(recorder, "resolve", resolve)
    return codes


def test_agents_are_those_of_the_processes_that_have_one_by_then(attached: dict[str, str]) -> None:
    find = agents_of("4250,4251")
    assert find() == Resolved("4250,4251", [Address("ipc://4250")])
    attached["4251"] = ""
    assert find() == Resolved("4250,4251", [Address("ipc://4250"), Address("ipc://4251")])
    attached["4250"] = "endpoint"
    assert find() == Resolved("4250,4251", [Address("ipc://4251")])


@pytest.mark.parametrize("codes", [("endpoint", "not-attached"), ("", "several-jobs")])
def test_no_agent_and_several_jobs_are_errors(codes: tuple[str, str], attached: dict[str, str]) -> None:
    attached.update(zip(attached, codes, strict=True))
    with pytest.raises(EndpointError):
        agents_of("4250,4251")


def test_a_recorder_stays_until_the_last_process_has_ended_that_may_start_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    living, asked = [4250, 4251], list[list[int]]()

    def is_stopped(*_: object) -> bool:
        asked.append([*living])
        living.pop(0)
        return len(asked) > 2

    monkeypatch.setattr(recorder, "has_ended", lambda pid: pid not in living)
    monkeypatch.setattr(Recorder, "_is_stopped", is_stopped)
    for name in ("_take_new_agents", "flush", "close"):
        monkeypatch.setattr(Recorder, name, lambda self, **_: None)
    followed = object.__new__(Recorder)
    followed._order = Order(Path(), follow=[4250, 4251])
    followed._job = SimpleNamespace(look=lambda: {"agent"}, has_ended=True)  # type: ignore[assignment]
    followed.run(lambda seconds: False)
    assert asked == [[4250, 4251], [4251]]
