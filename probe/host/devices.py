"""What a process has to do with devices: libraries, torch's build, open device files, its first environment.

Called by probe.attach.doctor_gpu.  Invariant: files are read as text and never executed, and what cannot be read is
None, never guessed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from glob import escape, glob
from typing import NamedTuple

from .memory_maps import Mapping as Mapped
from .memory_maps import read_mappings
from .processes import environment

LIBRARIES = ("libcuda", "libcudart", "libnccl", "libamdhip64")
# Older wheels of torch put a hash into the names of the libraries that they bring.
_LIBRARY = re.compile(rf"({'|'.join(LIBRARIES)})(?:-[0-9a-f]{{8}})?\.so(?:\.(\d[\d.]*))?")
_TORCH = re.compile(r"(/.*/torch)/(?:lib/libtorch\w*|_C)\.[^/ ]+")
_PACKAGE = re.compile(r"nvidia_\w+-([\w.+!]+)\.dist-info")
_DEVICE_FILE = re.compile(r"/dev/(?:nvidia.*|kfd|dri/renderD\d+)")
_DRIVER = "/proc/driver/nvidia/version"
_AMD_DRIVER = "/sys/module/amdgpu/version"
_MOST_CHARACTERS = 1 << 20  # more than any version.py or list of a package's files that we look at


class Library(NamedTuple):
    """A mapped file; version: as its name or its package has it, perhaps only the major one, None if neither does."""

    name: str
    file: str
    version: str | None


class Torch(NamedTuple):
    """version: as torch/version.py has it; kind: cpu, cuda or rocm; toolkit: the version of CUDA or ROCm."""

    version: str | None = None
    kind: str | None = None
    toolkit: str | None = None


@dataclass(frozen=True)
class ProcessDevices:
    """torch: None if it is not mapped; environment: as the process began, None if /proc shows none."""

    torch: Torch | None
    libraries: tuple[Library, ...]
    open_files: tuple[str, ...]
    environment: Mapping[str, str] | None


def read_devices(pid: int) -> ProcessDevices:
    """Raises PermissionError, or FileNotFoundError or ProcessLookupError when the process is gone."""
    root, mapped = f"/proc/{pid}/root", {each.path: each for each in read_mappings(pid) if each.path.startswith("/")}
    libraries = sorted({found for each in mapped.values() if (found := _library(root, each)) is not None})
    started_with = {name: value for name, value in environment(pid).items() if name}
    return ProcessDevices(
        _torch(root, mapped.values()), tuple(libraries), open_device_files(f"/proc/{pid}/fd"), started_with or None
    )


def open_device_files(folder: str) -> tuple[str, ...]:
    """The device files of GPUs among the open files in this folder, each once.  Raises OSError."""
    links = set()
    for number in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.add(os.readlink(f"{folder}/{number}"))
    return tuple(sorted(filter(_DEVICE_FILE.fullmatch, links), key=lambda link: (len(link), link)))


def nvidia_driver(path: str = _DRIVER) -> str | None:
    """The version of the kernel's driver; None where /proc does not show one."""
    found = re.search(r"Kernel Module.*?(?<!\S)(\d+(?:\.\d+)+)(?!\S)", _text(path))
    return found and found[1]


def amd_driver() -> str | None:
    """The version of AMD's driver, "" if it does not say one; None where there is no /dev/kfd."""
    return _text(_AMD_DRIVER).strip() if os.path.exists("/dev/kfd") else None


def _library(root: str, mapped: Mapped) -> Library | None:
    found = _LIBRARY.fullmatch(mapped.name)
    if found is None:
        return None
    name, version = found.groups()
    if version is None or "." not in version:
        # libcuda.so.1 is only the name of its interface, the others begin with the major version
        version = _packaged(root, mapped.path) or (None if name == "libcuda" else version)
    return Library(name, mapped.name, version)


def _packaged(root: str, path: str) -> str | None:
    """The version of NVIDIA's Python package that lists this file as its own.  A deleted file has none: the package
    beside it is a later one."""
    folder = path
    while (folder := os.path.dirname(folder)) != "/":
        for record in glob(f"{escape(root + folder)}/nvidia_*.dist-info/RECORD"):
            named = _PACKAGE.fullmatch(os.path.basename(os.path.dirname(record)))
            if named is not None and f"\n{os.path.relpath(path, folder)}," in f"\n{_text(record)}":
                return named[1]
    return None


def _torch(root: str, mapped: Iterable[Mapped]) -> Torch | None:
    names = {each.name.partition(".")[0] for each in mapped}
    if not any(name.startswith("libtorch") for name in names):
        return None
    folders = {found[1] for each in mapped if (found := _TORCH.fullmatch(each.path))}
    said = _text(f"{root}{folders.pop()}/version.py") if len(folders) == 1 else ""
    version, cuda, hip = (_assigned(name, said) for name in ("__version__", "cuda", "hip"))
    if hip or "libtorch_hip" in names:
        return Torch(version, "rocm", hip)
    if cuda or "libtorch_cuda" in names:
        return Torch(version, "cuda", cuda)
    return Torch(version, "cpu" if version else None)


def _assigned(name: str, source: str) -> str | None:
    """The text that a line of Python gives to this name: `cuda: Optional[str] = '12.8'`."""
    found = re.search(rf"^{name}\b[^=\n]*= *['\"]([\w.+-]+)['\"]", source, re.MULTILINE)
    return found and found[1]


def _text(path: str) -> str:
    """ "" for what may not be read, is gone or is no plain file: reading a pipe would not end."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(_MOST_CHARACTERS)
    return ""
