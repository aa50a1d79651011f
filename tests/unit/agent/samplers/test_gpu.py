"""The devices as a driver tells of them.  No test has met a real one: NVML is played, by the calls that are used."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from played_nvml import LOST, NO_PERMISSION, NOT_SUPPORTED, TIMEOUT, Nvml

from probe.agent.samplers import gpu
from probe.agent.samplers.gpu import Gpu
from probe.agent.samplers.sampler import Absent
from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.attach.bundle import pynvml_path
from probe.snapshot.log import Log as ReadLog
from probe.streams import (
    GPU_ECC_ERRORS,
    GPU_MEMORY_BYTES,
    GPU_MEMORY_CLOCK_MHZ,
    GPU_MEMORY_USED_BYTES,
    GPU_MEMORY_UTIL_PCT,
    GPU_NVLINK_RX_KB,
    GPU_NVLINK_TX_KB,
    GPU_PCIE_RX_BYTES,
    GPU_PCIE_TX_BYTES,
    GPU_POWER_LIMIT_MW,
    GPU_POWER_MW,
    GPU_SM_CLOCK_MHZ,
    GPU_TEMPERATURE_CELSIUS,
    GPU_THROTTLE_REASONS,
    GPU_UTIL_PCT,
    SAMPLES,
    STREAMS,
)

WHOLE = {
    GPU_UTIL_PCT: 97, GPU_MEMORY_UTIL_PCT: 31, GPU_MEMORY_USED_BYTES: 5 << 30, GPU_MEMORY_BYTES: 80 << 30,
    GPU_POWER_MW: 412_345, GPU_POWER_LIMIT_MW: 700_000, GPU_TEMPERATURE_CELSIUS: 61, GPU_SM_CLOCK_MHZ: 1980,
    GPU_MEMORY_CLOCK_MHZ: 3201, GPU_THROTTLE_REASONS: 4, GPU_ECC_ERRORS: 2, GPU_PCIE_RX_BYTES: 1000,
    GPU_PCIE_TX_BYTES: 1000, GPU_NVLINK_RX_KB: 5 << 40, GPU_NVLINK_TX_KB: 5 << 40,
}  # fmt: skip


class Sampled:
    """A sampler over a played driver, and what it wrote."""

    def __init__(self, nvml: Nvml) -> None:
        self.samples, self.log = Stream("test", STREAMS[SAMPLES], retention_bytes=1), Log()
        self.gpu = Gpu(self.samples, self.log, None, lambda path: nvml)
        self._from = 1

    def second(self) -> dict[str, dict[int, int]]:
        """One more sample: counters by the device's number in the process."""
        self.gpu.sample()
        self.log.write()
        read = ReadLog()
        read.feed(bytes(self.log.read(8, self.log.committed)))
        found: dict[str, dict[int, int]] = {}
        for _, view in self.samples.read(self._from, self.samples.position(), 4096):
            for _, source, counter, value, _ in struct.iter_unpack("<5q", view):
                device = read.devices[source]
                found.setdefault(f"{device['index']} {device['uuid']}", {})[counter] = value
            view.release()
        self._from = self.samples.position() + 1
        return found

    def close(self) -> None:
        self.gpu.close()
        self.samples.close()
        self.log.close()


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sampled]]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made: list[Sampled] = []

    def make(nvml: Nvml, visible: str | None = None) -> Sampled:
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        made.append(Sampled(nvml))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_every_counter_of_every_device_is_read(sampled: Callable[..., Sampled]):
    assert sampled(Nvml("a", "b")).second() == {"0 GPU-a-1234": WHOLE, "1 GPU-b-1234": WHOLE}


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, ["0 a", "1 b", "2 c"]),
        ("2,0", ["0 c", "1 a"]),
        ("GPU-b-1234", ["0 b"]),
        ("GPU-c", ["0 c"]),  # the beginning of a UUID will do
        ("1,-1,0", ["0 b"]),
        ("1, 7, 0", ["0 b"]),
        ("GPU-", []),
        ("", []),
    ],
)
def test_devices_are_those_that_the_process_sees_by_its_numbers(
    sampled: Callable[..., Sampled], visible: str | None, seen: list[str]
):
    nvml = Nvml("a", "b", "c")
    if not seen:
        with pytest.raises(Absent, match="no device is visible"):
            sampled(nvml, visible).second()
        assert nvml.inits == 0
        return
    assert list(sampled(nvml, visible).second()) == [f"{n.split()[0]} GPU-{n.split()[1]}-1234" for n in seen]


def test_an_instance_of_a_partitioned_device_is_found_by_its_uuid(sampled: Callable[..., Sampled]):
    nvml = Nvml("a", instances={"a": ["MIG-1", "MIG-2"]})
    assert list(sampled(nvml, "MIG-2").second()) == ["0 MIG-2"]


def test_of_a_partitioned_device_the_process_sees_the_first_instance(sampled: Callable[..., Sampled]):
    assert list(sampled(Nvml("a", instances={"a": ["MIG-1", "MIG-2"]})).second()) == ["0 MIG-1"]


@pytest.fixture
def torch_uses(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """torch_uses(1, of=["b", "a"]): it has a context on its device 1, which is the driver's "a"."""
    torch = pytest.importorskip("torch")

    def use(*indices: int, of: list[str]) -> None:
        for home, name, value in (
            (torch.cuda, "is_initialized", lambda: True),
            (torch.cuda, "device_count", lambda: len(of)),
            (torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=of[index])),
            (torch._C, "_cuda_hasPrimaryContext", lambda index: index in indices),
        ):
            monkeypatch.setattr(home, name, value, raising=False)

    return use


def test_once_torch_uses_devices_those_are_sampled_and_torch_says_which_they_are(
    sampled: Callable[..., Sampled], torch_uses: Callable[..., None]
):
    one = sampled(Nvml("a", "b", "c"))
    assert list(one.second()) == ["0 GPU-a-1234", "1 GPU-b-1234", "2 GPU-c-1234"]
    torch_uses(of=["c-1234", "b-1234", "a-1234"])  # initialized, without a context so far
    assert len(one.second()) == 3
    torch_uses(2, of=["c-1234", "b-1234", "a-1234"])  # as CUDA_DEVICE_ORDER=FASTEST_FIRST may have it
    assert list(one.second()) == ["2 GPU-a-1234"]
    sources = one.log.next_id()
    torch_uses(1, 2, of=["c-1234", "b-1234", "a-1234"])
    assert list(one.second()) == ["1 GPU-b-1234", "2 GPU-a-1234"]
    assert one.log.next_id() == sources + 2, "cuda:2 goes on"


def test_an_instance_of_a_partitioned_device_is_the_one_that_torch_uses(
    sampled: Callable[..., Sampled], torch_uses: Callable[..., None]
):
    one = sampled(Nvml("a", instances={"a": ["MIG-1", "MIG-2"]}))
    torch_uses(0, of=["2"])
    assert list(one.second()) == ["0 MIG-2"]


def test_where_torch_does_not_tell_uuids_the_visible_devices_go_on(
    sampled: Callable[..., Sampled], torch_uses: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    one = sampled(Nvml("a", "b"))
    torch_uses(0, of=["a-1234", "b-1234"])
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: SimpleNamespace())
    assert len(one.second()) == len(one.second()) == 2


@pytest.mark.parametrize("error", [NOT_SUPPORTED, NO_PERMISSION])
def test_an_unsupported_counter_is_requested_once(sampled: Callable[..., Sampled], error: int):
    nvml = Nvml("a", "b")
    nvml.broken["a", "ecc"] = nvml.broken["a", "throttle"] = error
    one = sampled(nvml)
    without = {counter: value for counter, value in WHOLE.items() if counter not in (GPU_ECC_ERRORS, 23)}
    assert GPU_THROTTLE_REASONS == 23
    for _ in range(3):
        assert one.second() == {"0 GPU-a-1234": without, "1 GPU-b-1234": WHOLE}
    assert (nvml.asked.count(("a", "ecc")), nvml.asked.count(("b", "ecc"))) == (1, 3)
    assert one.gpu.state == "on"


def test_a_counter_that_fails_for_a_moment_is_requested_again(sampled: Callable[..., Sampled]):
    nvml = Nvml("a")
    one = sampled(nvml)
    nvml.broken["a", "power"] = TIMEOUT
    assert GPU_POWER_MW not in one.second()["0 GPU-a-1234"]
    nvml.broken.clear()
    assert one.second()["0 GPU-a-1234"] == WHOLE


def test_a_device_that_falls_off_the_bus_is_named_and_the_others_go_on(sampled: Callable[..., Sampled]):
    nvml = Nvml("a", "b")
    one = sampled(nvml)
    one.second()
    nvml.broken["a", "*"] = LOST
    assert one.second() == {"1 GPU-b-1234": WHOLE}
    nvml.asked.clear()
    assert one.second() == {"1 GPU-b-1234": WHOLE}
    assert {device for device, _ in nvml.asked} == {"b"}
    assert one.gpu.state == "on, but off for cuda:0 (GPU is lost)"


def test_a_device_that_is_lost_at_the_start_keeps_its_number(sampled: Callable[..., Sampled]):
    nvml = Nvml("a", "b")
    nvml.broken["a", "handle"] = LOST
    assert list(sampled(nvml).second()) == ["1 GPU-b-1234"]


def test_links_that_a_device_lacks_are_left_out(sampled: Callable[..., Sampled]):
    nvml = Nvml("a")
    nvml.fields_without = {138, 139}
    one = sampled(nvml)
    assert not {GPU_NVLINK_RX_KB, GPU_NVLINK_TX_KB} & one.second()["0 GPU-a-1234"].keys()
    nvml.fields_without = {138, 139, 197, 198}
    one.second()
    one.second()
    assert nvml.asked.count(("a", "fields")) == 2


def test_the_marker_of_a_missing_value_is_no_value(sampled: Callable[..., Sampled], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Nvml, "nvmlDeviceGetPowerUsage", lambda self, device: (1 << 64) - 1)
    assert GPU_POWER_MW not in sampled(Nvml("a")).second()["0 GPU-a-1234"]


def test_a_driver_that_does_not_start_says_so(sampled: Callable[..., Sampled]):
    nvml = Nvml("a")
    nvml.broken["*", "init"] = 9
    with pytest.raises(Absent, match="NVML does not start: error 9"):
        Gpu(None, None, None, lambda path: nvml)  # type: ignore[arg-type]


def test_nvml_is_started_once_and_shut_down_once_but_not_in_a_forked_child(sampled: Callable[..., Sampled]):
    nvml = Nvml("a", "b")
    one = sampled(nvml)
    one.second()
    assert nvml.inits == 1
    one.gpu.forget()
    assert nvml.inits == 1 and one.second() == {}
    one.gpu.close()
    assert nvml.inits == 0
    nvml.inits = 1  # the fixture's close


def test_nvidia_ml_py_comes_from_the_command_under_a_private_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "pynvml.py").write_text("import sys\nme = sys.modules[__name__]\n")
    monkeypatch.setattr(gpu, "has_library", lambda: True)
    before = dict(sys.modules)
    assert gpu.pynvml_at(str(tmp_path)).__file__ == str(tmp_path / "pynvml.py")
    assert sys.modules.keys() - before.keys() == {"_probe_agent.pynvml"}
    del sys.modules["_probe_agent.pynvml"]


def test_the_processs_own_nvidia_ml_py_is_used_where_the_commands_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "pynvml.py").write_text("")
    monkeypatch.setattr(gpu, "has_library", lambda: True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert gpu.pynvml_at("/not/here").__file__ == str(tmp_path / "pynvml.py")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(Absent, match="has nvidia-ml-py"):
        gpu.pynvml_at(None)
    sys.modules.pop("_probe_agent.pynvml", None)


def test_every_call_and_constant_is_one_of_nvidia_ml_py(monkeypatch: pytest.MonkeyPatch):
    path = pynvml_path()
    if path is None:
        pytest.skip("nvidia-ml-py is not installed")
    monkeypatch.setattr(gpu, "has_library", lambda: True)
    real = gpu.pynvml_at(path)
    sys.modules.pop("_probe_agent.pynvml")
    names = [name for name in (*vars(Nvml), "NVMLError") if name.startswith(("nvml", "NVML"))]
    assert [name for name in names if not hasattr(real, name)] == []
    numbers = {name: value for name, value in vars(Nvml).items() if isinstance(value, int)}
    assert {name: getattr(real, name) for name in numbers} == numbers
