"""What is read of a process's devices: on a real process that has mapped files named as those of CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probe.host.devices import Library, ProcessDevices, Torch, nvidia_driver, open_device_files, read_devices

MAPS = """
import mmap, sys
files = [open(path, "rb") for path in sys.argv[1:]]
kept = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]
print("ready", flush=True)
sys.stdin.readline()
"""
CUDA_VERSION = """
from typing import Optional
raise SystemExit("executed")
__version__ = '2.13.0+cu128'
debug = False
cuda: Optional[str] = '12.8'
hip: Optional[str] = None
"""
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U22)\n"
Maps = Callable[..., int]


@pytest.fixture
def maps(tmp_path: Path) -> Iterator[Maps]:
    """maps("torch/lib/libtorch.so", env={…}): the pid of a process that has mapped these files of tmp_path."""
    processes: list[subprocess.Popen[str]] = []

    def maps(*files: str, env: dict[str, str] | None = None) -> int:
        paths = [file(tmp_path / each, "ELF") for each in files]
        command = [sys.executable, "-c", MAPS, *map(str, paths)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, env=env, **pipes)  # type: ignore[call-overload]
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return int(process.pid)

    yield maps
    for process in processes:
        process.communicate("\n")


def file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def library(found: ProcessDevices) -> Library:
    (one,) = found.libraries
    return one


@pytest.mark.parametrize(
    ("name", "file", "version"),
    [
        ("libcuda", "libcuda.so.550.54.15", "550.54.15"),
        ("libcuda", "libcuda.so.1", None),  # the name of the interface
        ("libcudart", "libcudart.so.12.4.127", "12.4.127"),
        ("libcudart", "libcudart-d0da41ae.so.11.0", "11.0"),
        ("libcudart", "libcudart.so.12", "12"),
        ("libnccl", "libnccl.so.2.21.5", "2.21.5"),
        ("libamdhip64", "libamdhip64.so.6.2.60204", "6.2.60204"),
        ("libamdhip64", "libamdhip64.so", None),
    ],
)
def test_a_library_has_the_version_in_its_name(maps: Maps, name: str, file: str, version: str | None) -> None:
    assert library(read_devices(maps(file))) == (name, file, version)


def test_a_library_has_the_version_of_the_package_that_lists_it(maps: Maps, tmp_path: Path) -> None:
    file(tmp_path / "nvidia_nccl_cu12-2.27.3.dist-info" / "RECORD", "nvidia/nccl/lib/libnccl.so.2,sha256=x,9\n")
    file(tmp_path / "nvidia_nccl_cu11-2.20.5.dist-info" / "RECORD", "nvidia/nccl/lib/libnccl.so.20,sha256=x,9\n")
    assert library(read_devices(maps("nvidia/nccl/lib/libnccl.so.2"))).version == "2.27.3"
    assert library(read_devices(maps("elsewhere/libnccl.so.2"))).version == "2"


def test_a_file_replaced_since_does_not_have_the_version_of_its_successor(maps: Maps, tmp_path: Path) -> None:
    file(tmp_path / "nvidia_nccl_cu12-2.27.3.dist-info" / "RECORD", "nvidia/nccl/lib/libnccl.so.2,sha256=x,9\n")
    file(tmp_path / "torch" / "version.py", CUDA_VERSION)
    pid = maps("nvidia/nccl/lib/libnccl.so.2", "torch/lib/libtorch_cuda.so")
    for name in ("nvidia/nccl/lib/libnccl.so.2", "torch/lib/libtorch_cuda.so"):
        (tmp_path / name).unlink()
        file(tmp_path / name, "another")
    found = read_devices(pid)
    assert library(found).version == "2" and found.torch == Torch(None, "cuda", None)


def test_the_version_of_torch_is_read_and_not_executed(maps: Maps, tmp_path: Path) -> None:
    file(tmp_path / "torch" / "version.py", CUDA_VERSION)
    assert read_devices(maps("torch/lib/libtorch_cpu.so")).torch == Torch("2.13.0+cu128", "cuda", "12.8")


def test_a_build_for_rocm_is_known_by_its_version_or_by_its_library(maps: Maps, tmp_path: Path) -> None:
    assert read_devices(maps("torch/lib/libtorch_hip.so")).torch == Torch(None, "rocm", None)
    file(tmp_path / "torch" / "version.py", "__version__ = '2.9.0+rocm6.4'\ncuda = None\nhip = '6.4.43482'\n")
    assert read_devices(maps("torch/lib/libtorch.so")).torch == Torch("2.9.0+rocm6.4", "rocm", "6.4.43482")


def test_nothing_is_guessed_of_a_torch_without_a_readable_version(maps: Maps, tmp_path: Path) -> None:
    assert read_devices(maps("lib/libtorch_cpu.so")).torch == Torch(None, None, None)
    (tmp_path / "torch").mkdir()
    os.mkfifo(tmp_path / "torch" / "version.py")  # reading it would not end
    assert read_devices(maps("torch/lib/libtorch.so")).torch == Torch(None, None, None)


def test_a_process_without_any_of_it(maps: Maps) -> None:
    found = read_devices(maps(env={"CUDA_VISIBLE_DEVICES": "1,0"}))
    assert (found.torch, found.libraries, found.open_files) == (None, (), ())
    assert found.environment is not None and found.environment["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert read_devices(maps(env={})).environment is None  # as of a process that has written its title over it


def test_a_process_that_is_gone_raises() -> None:
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        read_devices(4_194_305)


def test_open_device_files_are_those_of_gpus(tmp_path: Path) -> None:
    links = ["/dev/nvidia10", "/dev/nvidia2", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kfd"]
    for number, link in enumerate([*links, "/dev/null", "/dev/shm/nvidia", "socket:[1]", "/home/dev/nvidia0"]):
        (tmp_path / str(number)).symlink_to(link)
    found = open_device_files(str(tmp_path))
    assert found == ("/dev/kfd", "/dev/nvidia2", "/dev/nvidia10", "/dev/nvidiactl", "/dev/nvidia-uvm")


@pytest.mark.parametrize(
    ("text", "version"), [(PROPRIETARY, "550.54.15"), (OPEN, "570.86.15"), ("NVRM version: of no known form", None)]
)
def test_the_driver_has_the_version_that_proc_shows(text: str, version: str | None, tmp_path: Path) -> None:
    assert nvidia_driver(str(file(tmp_path / "version", text))) == version


def test_there_is_no_driver_without_its_file(tmp_path: Path) -> None:
    assert nvidia_driver(str(tmp_path / "version")) is None
