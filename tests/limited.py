"""Cgroups with limits of memory, in a folder that stands for the kernel's."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from probe.host import cgroups

MB = 1 << 20


class Cgroup(NamedTuple):
    """most, used, unused_files: in MB; most may be "max", which is none."""

    path: str = "/"
    most: int | str = 1024
    used: int = 0
    unused_files: int = 0
    as_one: bool = False

    def write(self, root: Path) -> None:
        folder = root / self.path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            "memory.max": self.most if isinstance(self.most, str) else self.most * MB,
            "memory.current": self.used * MB,
            "memory.oom.group": int(self.as_one),
            "memory.stat": f"anon 1\ninactive_file {self.unused_files * MB}\nactive_file 2",
        }
        for name, value in files.items():
            (folder / name).write_text(f"{value}\n")


def put_into(own: Cgroup, *above: Cgroup, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be in `own`."""
    for each in (own, *above):
        each.write(folder / "cgroup")
    (folder / "own").write_text(f"4:memory:/elsewhere\n0::{own.path}\n")
    monkeypatch.setattr(cgroups, "_ROOT", folder / "cgroup")
    monkeypatch.setattr(cgroups, "_OWN", folder / "own")
