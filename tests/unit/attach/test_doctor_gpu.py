"""What `probe doctor --gpu` says of what was read."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from probe import protocol as wire
from probe.attach import doctor_gpu
from probe.attach.doctor import Condition
from probe.host.devices import Library, ProcessDevices, Torch
from probe.host.nvml import Device, Nvml

CPU, CUDA, ROCM = Torch("2.13.0+cpu", "cpu"), Torch("2.13.0+cu128", "cuda", "12.8"), Torch("2.9.0", "rocm", "6.4")
NO_NVML = Nvml(why_not="no NVML library")


def device(pids: tuple[int, ...] | None = (4242,)) -> Device:
    return Device("NVIDIA H200", "GPU-a-1234", (5_400_000_000, 141_000_000_000), "off", pids)


def told(conditions: Iterable[Condition]) -> dict[str, str]:
    found = list(conditions)
    assert [each for each in found if each.holds is not None or each.error is not None] == []
    return {each.name: each.detail for each in found}


def recorded(torch: Torch | None, environment: dict[str, str] | None, *open_files: str) -> dict[str, str]:
    return told(doctor_gpu.recorded(ProcessDevices(torch, (), open_files, environment), NO_NVML))


def process(monkeypatch: pytest.MonkeyPatch, nvml: Nvml, found: ProcessDevices) -> dict[str, str]:
    monkeypatch.setattr(doctor_gpu, "read_devices", lambda pid: found)
    return told(doctor_gpu.of_process(os.getpid(), nvml))


def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gpu, "nvidia_driver", lambda: None)
    monkeypatch.setattr(doctor_gpu, "amd_driver", lambda: None)
    assert told(doctor_gpu.of_machine(NO_NVML)) == {
        "driver": "no NVIDIA driver is seen here",
        "nvml": "no NVML library",
    }


def test_the_machine_has_its_drivers_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gpu, "nvidia_driver", lambda: None)
    monkeypatch.setattr(doctor_gpu, "amd_driver", lambda: "")
    monkeypatch.setattr(doctor_gpu, "knows_our_pids", lambda: True)
    silent = Device(None, None, None, None, None)
    said = told(doctor_gpu.of_machine(Nvml("570.86.15", (device((4242, 4300)), device(()), silent))))
    assert said == {
        "driver": "NVIDIA 570.86.15, as NVML says",
        "amd driver": "amdgpu, version not known",
        "nvml": "devices: 3",
        "gpu 0": "NVIDIA H200, 5.4 of 141.0 GB in use, MIG off, contexts of pids 4242, 4300, GPU-a-1234",
        "gpu 1": "NVIDIA H200, 5.4 of 141.0 GB in use, MIG off, no contexts, GPU-a-1234",
        "gpu 2": "name not known, memory not known, MIG not known, contexts not known, UUID not known",
    }
    monkeypatch.setattr(doctor_gpu, "nvidia_driver", lambda: "550.54.15")
    assert told(doctor_gpu.of_machine(NO_NVML))["driver"] == "NVIDIA 550.54.15"


def test_a_process_has_its_libraries_files_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = (
        Library("libcudart", "libcudart-d0da41ae.so.11.0", "11.0"),
        Library("libcudart", "libcudart.so.12", "12.8.90"),
        Library("libcuda", "libcuda.so.1", None),
    )
    visible = {"CUDA_VISIBLE_DEVICES": "", "HOME": "/root"}
    found = ProcessDevices(CUDA, libraries, ("/dev/nvidia0", "/dev/nvidiactl"), visible)
    said = process(monkeypatch, NO_NVML, found)
    assert said["torch"] == "2.13.0+cu128, built for CUDA 12.8"
    assert said["libcudart"] == "11.0 (libcudart-d0da41ae.so.11.0), 12.8.90 (libcudart.so.12)"
    assert said["libcuda"] == "version not known (libcuda.so.1)"
    assert said["libnccl"] == "no file of its own is mapped; torch may contain it"
    assert said["libamdhip64"] == "not mapped"
    assert said["open"] == "/dev/nvidia0, /dev/nvidiactl"
    assert said["visible"] == "CUDA_VISIBLE_DEVICES= when the process began"
    assert said["contexts"] == "not known: no NVML library"
    forged = process(monkeypatch, NO_NVML, ProcessDevices(CUDA, (), (), {"CUDA_VISIBLE_DEVICES": "0\nok  yama"}))
    assert forged["visible"] == r"CUDA_VISIBLE_DEVICES='0\nok  yama' when the process began"
    empty = process(monkeypatch, NO_NVML, ProcessDevices(None, (), (), None))
    assert empty["visible"] == "CUDA_VISIBLE_DEVICES is not known: /proc shows no environment"
    assert "has not imported it" in empty["torch"] and empty["libnccl"] == "not mapped"


def test_whether_nvml_lists_the_process_is_said_only_where_its_pids_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, nothing = device((1, os.getpid())), ProcessDevices(CUDA, (), (), {})

    def contexts(*devices: Device) -> str:
        return process(monkeypatch, Nvml("570", devices), nothing)["contexts"]

    monkeypatch.setattr(doctor_gpu, "knows_our_pids", lambda: True)
    assert contexts(device((1,)), mine) == "NVML lists this process on gpu 1"
    assert contexts(device((1,))) == "NVML lists this process on no device"
    assert contexts(device(None), mine) == "NVML lists this process on gpu 1; not known on gpu 0"
    monkeypatch.setattr(doctor_gpu, "knows_our_pids", lambda: False)
    assert contexts(mine).startswith("not known")
    assert "perhaps as the host counts them" in told(doctor_gpu.of_machine(Nvml("570", (mine,))))["gpu 0"]


def test_a_torch_for_the_cpu_has_no_device_times_and_its_backends_are_not_known() -> None:
    said = recorded(CPU, {})
    assert said["device times"] == "nothing to record: this torch is built without CUDA"
    assert said["collectives"] == "on if all backends are gloo, MPI, UCC or NCCL, which is not known until attached"
    assert said["gpu_trace"] == "off, unless NVML starts there; here: no NVML library"


def test_on_cuda_all_is_on_and_on_rocm_nothing() -> None:
    said = recorded(CUDA, {}, "/dev/nvidia0")
    assert said["device times"] == "on once torch uses CUDA, which is not known until attached; device files are open"
    assert said["collectives"] == "on if all backends are gloo, MPI, UCC or NCCL, which is not known until attached"
    assert said["dumps"] == "of the Flight Recorder: as for collectives"
    assert recorded(CUDA, {})["device times"].endswith("no device file is open now")
    assert recorded(ROCM, {})["device times"] == f"off: ROCm, {wire.UNTESTED}"
    assert recorded(ROCM, {})["collectives"].startswith(f"off if torch uses ROCm, {wire.UNTESTED}")


@pytest.mark.parametrize("torch", [None, Torch()])
def test_nothing_is_foretold_without_torch_or_its_build(torch: Torch | None) -> None:
    said = recorded(torch, {})
    assert said["device times"].startswith("not known until attached") and said["collectives"] == said["device times"]


def test_an_agent_that_is_there_is_believed() -> None:
    off = f"off: CUDA is in use, {wire.UNWANTED}"
    said = told(doctor_gpu.said_by_agent({"device": off, "collectives": wire.NO_GROUP, "gpu": "on"}))
    assert said["device times"] == f"the agent says: {off}" and said["dumps"].endswith(off)
    assert said["collectives"] == f"the agent says: {wire.NO_GROUP}" and said["gpu_trace"] == "the agent says: on"
    said = told(doctor_gpu.said_by_agent({"collectives": "on"}))
    assert "does not use CUDA" in said["device times"] and said["dumps"].endswith(": on")


@pytest.mark.parametrize(("raised", "why"), [(PermissionError, "may not look"), (FileNotFoundError, "no such process")])
def test_a_process_that_cannot_be_read_is_not_known(
    monkeypatch: pytest.MonkeyPatch, raised: type[OSError], why: str
) -> None:
    def refused(pid: int) -> ProcessDevices:
        raise raised

    monkeypatch.setattr(doctor_gpu, "read_devices", refused)
    (said,) = told(doctor_gpu.of_process(4242000, NO_NVML)).values()
    assert said.startswith("not known") and why in said
