"""Calls of the system, where Python has them and where it was built for a C library that did not."""

from __future__ import annotations

import os
import select
import subprocess

import pytest

from probe.host.system_calls import memfd_create, pidfd_open


@pytest.fixture(params=["usual", "old C library"], autouse=True)
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "usual":
        for name in ("memfd_create", "MFD_CLOEXEC", "pidfd_open"):
            monkeypatch.delattr(os, name)


def test_a_file_in_memory_has_its_name_and_is_not_inherited() -> None:
    made = memfd_create("probe-config")
    os.pwrite(made, b"text", 0)
    assert os.readlink(f"/proc/self/fd/{made}") == "/memfd:probe-config (deleted)"
    assert os.pread(made, 9, 0) == b"text" and not os.get_inheritable(made)
    os.close(made)


def test_the_end_of_a_process_is_told() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        ended = pidfd_open(process.pid)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        assert not poll.poll(0) and not os.get_inheritable(ended)
        process.kill()
        assert poll.poll()
        os.close(ended)


def test_of_a_process_that_does_not_exist_it_is_the_kernels_error() -> None:
    with pytest.raises(ProcessLookupError):
        pidfd_open(4_194_305)


def test_of_no_process_it_is_the_kernels_error() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        pidfd_open(-1)
