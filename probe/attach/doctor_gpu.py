"""What can be told of devices by reading alone: of this machine, and of a process and what an agent would record there.

Called by the verb `doctor` with --gpu.  Invariant: this is information, on which attaching does not depend.  Nothing is
attached to, stopped, executed or allocated on a device, and what cannot be read is called not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .. import protocol as wire
from ..host import agent_memory
from ..host.devices import LIBRARIES, ProcessDevices, Torch, amd_driver, nvidia_driver, read_devices
from ..host.nvml import Device, Nvml, knows_our_pids
from .doctor import Condition

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_KINDS = {"cuda": "CUDA", "rocm": "ROCm"}
_BACKENDS = "gloo, MPI, UCC or NCCL"
_UNKNOWN = "not known until attached"


def of_machine(nvml: Nvml) -> list[Condition]:
    """The drivers, and the devices as NVML sees them."""
    found = [_told("driver", _driver(nvml))]
    if (amd := amd_driver()) is not None:
        found.append(_told("amd driver", f"amdgpu, {amd or 'version not known'}"))
    found.append(_told("nvml", nvml.why_not or f"devices: {len(nvml.devices)}"))
    return found + [_told(f"gpu {index}", _device(device)) for index, device in enumerate(nvml.devices)]


def of_process(pid: int, nvml: Nvml) -> list[Condition]:
    """What the process has mapped and open, then what an agent records there or would record."""
    try:
        found = read_devices(pid)
    except PermissionError:
        return [_told("devices", "not known: you may not look into this process")]
    except (FileNotFoundError, ProcessLookupError):
        return [_told("devices", "not known: there is no such process")]
    agent = agent_memory.facts(pid)
    return [
        _told("torch", _torch(found.torch)),
        *(_told(name, _library(name, found)) for name in LIBRARIES),
        _told("open", ", ".join(found.open_files) or "no device file"),
        _told("visible", _visible(found.environment)),
        _told("contexts", _contexts(pid, nvml)),
        *(recorded(found, nvml) if agent is None else said_by_agent(agent.taps)),
    ]


def recorded(found: ProcessDevices, nvml: Nvml) -> list[Condition]:
    """What an agent would record on devices, and why not.  agent/taps/device_policy.py decides it once attached."""
    visible = "on for the devices that the process sees, if NVML starts there as it does here"
    return [
        _told("device times", _device_times(found)),
        _told("collectives", _collectives(found)),
        _told("dumps", "of the Flight Recorder: as for collectives"),
        _told("gpu_trace", f"off, unless NVML starts there; here: {nvml.why_not}" if nvml.why_not else visible),
    ]


def said_by_agent(taps: Mapping[str, str]) -> list[Condition]:
    """What the agent that is already there says of its taps."""
    left_alone = next((state for state in taps.values() if state.endswith(wire.LEFT_ALONE)), None)
    return [
        _told("device times", f"the agent says: {taps.get('device', 'off: the job does not use CUDA')}"),
        _told("collectives", f"the agent says: {taps.get('collectives', 'not known')}"),
        _told("dumps", f"of the Flight Recorder: {left_alone or 'on'}"),
        _told("gpu_trace", f"the agent says: {taps.get('gpu', 'not known')}"),
    ]


def _told(name: str, detail: str) -> Condition:
    return Condition(name, detail, matters=False)


def _driver(nvml: Nvml) -> str:
    if version := nvidia_driver():
        return f"NVIDIA {version}"
    return f"NVIDIA {nvml.driver}, as NVML says" if nvml.driver else "no NVIDIA driver is seen here"


def _device(device: Device) -> str:
    used = device.memory_bytes and "{:.1f} of {:.1f} GB in use".format(*(size / 1e9 for size in device.memory_bytes))
    whose = "" if knows_our_pids() else ", perhaps as the host counts them"
    pids = device.pids and f"contexts of pids {_list(map(str, device.pids))}{whose}"
    return ", ".join(
        (
            device.name or "name not known",
            used or "memory not known",
            f"MIG {device.mig or 'not known'}",
            pids or ("contexts not known" if device.pids is None else "no contexts"),
            device.uuid or "UUID not known",
        )
    )


def _torch(torch: Torch | None) -> str:
    if torch is None:
        return "not mapped: this process has not imported it"
    if torch.kind is None:
        return "mapped, but its version and build are not known"
    toolkit = f"for {_KINDS[torch.kind]} {torch.toolkit or '(version not known)'}" if torch.kind in _KINDS else ""
    return f"{torch.version or 'version not known'}, built {toolkit or 'without CUDA and ROCm'}"


def _library(name: str, found: ProcessDevices) -> str:
    mapped = [each for each in found.libraries if each.name == name]
    inside = name == "libnccl" and found.torch is not None and found.torch.kind not in ("cpu", None)
    nothing = "no file of its own is mapped; torch may contain it" if inside else "not mapped"
    return _list(f"{each.version or 'version not known'} ({each.file})" for each in mapped) or nothing


def _visible(environment: Mapping[str, str] | None) -> str:
    if environment is None:
        return f"{_VISIBLE[0]} is not known: /proc shows no environment"
    found = [f"{name}={_printable(environment[name])}" for name in _VISIBLE if name in environment]
    return f"{_list(found) or f'{_VISIBLE[0]} was not set'} when the process began"


def _printable(text: str) -> str:
    """In one line: whoever owns the process has written it."""
    return text if text.isprintable() else ascii(text)


def _contexts(pid: int, nvml: Nvml) -> str:
    """On which devices the process has a compute context, as far as NVML tells it."""
    if nvml.why_not:
        return f"not known: {nvml.why_not}"
    if not knows_our_pids():
        return "not known: in this container, NVML may count processes as the host does"
    has = [f"gpu {index}" for index, device in enumerate(nvml.devices) if pid in (device.pids or ())]
    silent = [f"gpu {index}" for index, device in enumerate(nvml.devices) if device.pids is None]
    told = f"NVML lists this process on {_list(has) or 'no device'}"
    return f"{told}; not known on {_list(silent)}" if silent else told


def _device_times(found: ProcessDevices) -> str:
    kind = found.torch and found.torch.kind
    if kind is None:
        return _no_torch(found)
    if kind == "cpu":
        return "nothing to record: this torch is built without CUDA"
    if kind == "rocm":
        return f"off: ROCm, {wire.UNTESTED}"
    now = "device files are open" if found.open_files else "no device file is open now"
    return f"on once torch uses CUDA, which is {_UNKNOWN}; {now}"


def _collectives(found: ProcessDevices) -> str:
    kind = found.torch and found.torch.kind
    if kind is None:
        return _no_torch(found)
    if kind == "rocm":
        return f"off if torch uses ROCm, {wire.UNTESTED}; whether it does is {_UNKNOWN}"
    return f"on if all backends are {_BACKENDS}, which is {_UNKNOWN}"


def _no_torch(found: ProcessDevices) -> str:
    return f"{_UNKNOWN}: {'this process has not imported torch' if found.torch is None else 'what torch is built for'}"


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)
