"""What pystack says of a thread, in the words that we show."""

from __future__ import annotations

import pytest

from probe.host.native_frames import below_python, function_of

WAIT = "c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >)"


@pytest.mark.parametrize(
    ("symbol", "told"),
    [
        (WAIT, "c10d::Work::wait"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
        ("__pthread_cond_wait_common (inlined)", "__pthread_cond_wait_common"),
        ("std::function<void (int)>::operator()(int) const", "std::function::operator{} const"),
        ("gloo::transport::tcp::(anonymous namespace)::poll(int)", "gloo::transport::tcp::{anonymous}::poll"),
        ("f(bool (c10d::Work::*)(int), char const (&) [654])::{lambda(int)#1}::_FUN(int)", "f::{lambda#1}::_FUN"),
    ],
)
def test_a_function_is_named_without_its_arguments(symbol: str, told: str) -> None:
    assert function_of(symbol) == told


def test_only_what_the_innermost_python_function_has_called_is_shown() -> None:
    frames = [
        ["main", "/usr/bin/python3.11"], ["_PyEval_EvalFrameDefault", "/lib/libpython3.11.so"],
        ["do_call_core (inlined)", "/lib/libpython3.11.so"], ["_PyObject_Call", "/lib/libpython3.11.so"],
        [WAIT, "/torch/lib/libtorch_cpu.so"], ["__futex_abstimed_wait", "/lib/libc.so.6"],
    ]  # fmt: skip
    found = below_python(frames)
    assert [str(each) for each in found] == ["__futex_abstimed_wait (libc.so.6)", "c10d::Work::wait (libtorch_cpu.so)"]
    assert [each.is_of_system for each in found] == [True, False]
    assert [each.function for each in below_python(frames[:4])] == ["_PyObject_Call"]
