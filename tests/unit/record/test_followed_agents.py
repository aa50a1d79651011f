"""Which agents a recorder looks for; processes and agents are played."""

from __future__ import annotations

import pytest

from probe.client.endpoints import Address, Resolved
from probe.errors import EndpointError
from probe.record import recorder
from probe.record.recorder import agents_of


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
