"""What the tap of collectives does with a process group before its first operation, on stand-ins for torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from probe.agent.storage.log import Log
from probe.agent.taps.collectives.groups import Groups
from probe.agent.taps.device_policy import LeftAlone


class ProcessGroup:
    """Of one backend, which is wrapped or not."""

    group_name, _device_types = "0", ("cuda",)

    def __init__(self, backend: str, can_be_timed: bool = True) -> None:
        self.backend, self.can_be_timed, self.timed = backend, can_be_timed, 0

    def _get_backend(self, device: Any) -> ProcessGroup:
        return self

    def _get_backend_name(self) -> str:
        return self.backend

    def _enable_collectives_timing(self) -> None:
        if not self.can_be_timed:
            raise RuntimeError(f"Backend {self.backend} is missing implementation of enableCollectivesTiming.")
        self.timed += 1

    def _get_sequence_number_for_group(self) -> int:
        return 7

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.close()


def test_nccl_times_its_operations_from_the_first_one_on(log: Log) -> None:
    groups, process_group = Groups(log), ProcessGroup("nccl")
    known = groups.of(process_group, [])
    assert groups.of(process_group, []) is known
    assert (known.timed, known.futures, process_group.timed) == (True, False, 1)


def test_nccl_that_cannot_be_timed_is_left_alone_as_only_its_works_would_tell_their_end(log: Log) -> None:
    with pytest.raises(LeftAlone, match="uses nccl and does not time it, as with TORCH_DISTRIBUTED_DEBUG=DETAIL"):
        Groups(log).of(ProcessGroup("nccl", can_be_timed=False), [])
    log.write()
    assert log.committed == 8  # not even the group has a record


def test_gloo_is_asked_for_no_times(log: Log) -> None:
    process_group = ProcessGroup("gloo", can_be_timed=False)
    known = Groups(log).of(process_group, [])
    assert (known.timed, known.futures, known.number(process_group)) == (False, True, 7)
