"""When torch's profiler is not run: another one occupies the device, it is left alone, or a CUDA graph is captured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from probe.agent.capture.profiler import graph_is_captured, why_none
from probe.agent.torch_state import leave_devices_alone


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A torch that uses CUDA and captures no graph."""
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: False)
    autograd = SimpleNamespace(kineto_available=lambda: True)
    made = SimpleNamespace(__spec__=None, version=SimpleNamespace(hip=None), cuda=cuda, autograd=autograd)
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", SimpleNamespace(_is_profiler_enabled=False))
    yield made
    leave_devices_alone(False)


@pytest.mark.parametrize("name", ["CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"])
def test_not_where_the_environment_has_another_profiler(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert why_none() == ""
    monkeypatch.setenv(name, "/opt/nsight/libToolsInjection64.so")
    assert why_none() == f"{name} is set: another profiler occupies the device"


def test_not_while_proton_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    proton = ModuleType("triton.profiler.flags")
    proton.flags = SimpleNamespace(profiling_on=True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, proton.__name__, proton)
    assert why_none() == "Triton's Proton is running, which occupies the device"
    proton.flags.profiling_on = False
    assert why_none() == ""


def test_not_where_devices_are_left_alone_as_it_would_blind_the_profilers_of_the_job(torch: SimpleNamespace) -> None:
    leave_devices_alone(True)
    assert why_none().startswith("devices are left alone, and torch's profiler")
    torch.cuda.is_initialized = lambda: False
    assert why_none() == ""
    leave_devices_alone(False)
    torch.cuda.is_initialized, torch.version.hip = lambda: True, "7.0"
    assert why_none().startswith("devices are left alone")


def test_not_while_this_thread_captures_a_graph_on_a_device_that_may_be_asked(torch: SimpleNamespace) -> None:
    assert not graph_is_captured()
    torch.cuda.is_current_stream_capturing = lambda: True
    assert graph_is_captured()
    torch.cuda.is_initialized = lambda: False
    assert not graph_is_captured()


IMPORTS = """
import sys, threading, torch
from probe.agent.capture import profiler
begin, asked = torch.profiler.profile.start, []
def start(profile):
    other = threading.Thread(target=lambda: asked.append("_inductor" in torch._lazy_modules))
    other.start(), other.join()
    begin(profile)
torch.profiler.profile.start = start
lazy = torch._lazy_modules
made = profiler.Profiler(False, print)
made.start()
torch.ones(3) + 1
made.stop()
assert b"aten::add" in made.save()[:]
assert "torch._inductor" not in sys.modules, "imported"
assert asked == [True] and torch._lazy_modules is lazy
"""


@pytest.mark.slow
def test_a_job_without_torchs_compiler_does_not_get_it() -> None:
    """torch's profiler asks whether it is there, which imports it."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
