"""What NVML tells of devices: on a played driver."""

from __future__ import annotations

import sys

import pytest
from played_nvml import NO_PERMISSION, Nvml

from probe.host.nvml import Device, read_nvml


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    nvml = Nvml("a", "b", instances={"b": ["MIG-1"]})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_each_device_has_what_nvml_says(played: Nvml) -> None:
    played.computing = {"a": [4300, 4242, 4242]}
    told = read_nvml()
    assert (told.driver, told.why_not, played.inits) == ("570.86.15", "", 0)
    memory = (5 << 30, 80 << 30)
    assert told.devices == (
        Device("NVIDIA H200", "GPU-a-1234", memory, "not supported", (4242, 4300)),
        Device("NVIDIA H200", "GPU-b-1234", memory, "on", ()),
    )


def test_what_nvml_does_not_say_is_none(played: Nvml) -> None:
    played.broken = {("a", "memory"): NO_PERMISSION, ("a", "processes"): NO_PERMISSION, ("b", "handle"): NO_PERMISSION}
    first, second = read_nvml().devices
    assert (first.memory_bytes, first.pids, first.name) == (None, None, "NVIDIA H200")
    assert second == Device(None, None, None, None, None)
    assert played.inits == 0


def test_a_driver_that_is_older_than_nvidia_ml_py_tells_no_processes(played: Nvml) -> None:
    played.is_older = True
    assert [device.pids for device in read_nvml().devices] == [None, None]


def test_a_missing_library_and_another_failure_are_told_apart(played: Nvml) -> None:
    played.broken[("*", "init")] = played.NVML_ERROR_LIBRARY_NOT_FOUND
    assert read_nvml().why_not == "no NVML library"
    played.broken[("*", "init")] = played.NVML_ERROR_DRIVER_NOT_LOADED
    assert read_nvml().why_not == "NVML does not start: error 9"


def test_without_nvidia_ml_py_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in read_nvml().why_not
