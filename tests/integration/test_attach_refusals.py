"""What cannot be attached to is refused at once, each cause by its own code, and left alone."""

from __future__ import annotations

import _thread
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from delivering import as_another_user, put
from until import stop, until

from probe.attach import attach, delivery
from probe.attach import start as start_agent
from probe.attach.refusals import check_interpreter
from probe.errors import CODES, AttachError
from target import Start, Target

pytestmark = pytest.mark.alone  # it looks at the clock


def refusal(pid: int) -> AttachError:
    began = time.monotonic()
    with pytest.raises(AttachError) as caught:
        attach(pid, timeout=20)
    assert time.monotonic() - began < 10
    assert caught.value.code in CODES
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("pid", [0, -1, 4_194_305, 1 << 40])
def test_attaching_to_a_pid_that_does_not_exist_fails(pid):
    error = refusal(pid)
    assert error.code == "no-process"
    assert str(pid) in error.message


def test_the_id_of_a_thread_is_refused():
    ready, done = threading.Event(), threading.Event()
    tids: list[int] = []
    thread = threading.Thread(target=lambda: (tids.append(threading.get_native_id()), ready.set(), done.wait()))
    thread.start()
    ready.wait()
    try:
        error = refusal(tids[0])
        assert error.code == "is-thread"
        assert error.hint == f"Attach to the process: probe attach {os.getpid()}"
    finally:
        done.set()
        thread.join()


def test_a_zombie_is_refused():
    child = subprocess.Popen(["true"])
    until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert refusal(child.pid).code == "zombie"
    child.wait()


def test_a_stopped_process_is_refused_and_stays_stopped(start: Start):
    target = start("waiting.py", "sleep")
    stop(target.pid)
    error = refusal(target.pid)
    assert error.code == "stopped"
    assert error.hint == f"Resume it first: kill -CONT {target.pid}"
    assert Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_process_under_a_debugger_is_refused(start: Start):
    target = start("waiting.py", "sleep")
    hold = f"from probe.attach.inject import ptrace; ptrace.seize({target.pid}); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as debugger:
        assert debugger.stdout and debugger.stdout.readline() == "held\n"
        error = refusal(target.pid)
        debugger.kill()
    assert error.code == "traced"
    assert f"(pid {debugger.pid})" in error.message


def test_a_program_that_is_not_python_is_refused():
    with subprocess.Popen(["sleep", "100"]) as child:
        error = refusal(child.pid)
        child.kill()
    assert error.code == "not-python"
    assert "sleep" in error.message


@pytest.mark.skipif(not os.path.exists("/proc/2/comm"), reason="the kernel's threads are not visible here")
def test_a_kernel_thread_is_refused():
    if Path("/proc/2/comm").read_text() != "kthreadd\n":
        pytest.skip("pid 2 is an ordinary process here")
    assert refusal(2).code == "kernel-thread"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_process_of_another_user_is_refused(start: Start):
    target = start("waiting.py", "sleep")

    def code() -> str:
        try:
            delivery.deliver(target.pid, [], 5.0)
        except AttachError as error:
            return error.code
        return "attached"

    assert as_another_user(code) == "other-user"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may attach to somebody else")
def test_root_attaches_to_a_process_of_another_user(start: Start):
    target = start("waiting.py", "other_user", ready="changed")
    assert put(target).reply["facts"]["uid"] == 0


def test_a_process_that_may_not_make_large_files_is_refused_and_lives(start: Start):
    target = start("waiting.py", "small_files", ready="limited")
    error = refusal(target.pid)
    assert error.code == "file-size" and "1048576 bytes" in error.message
    assert error.hint.endswith(f"prlimit --fsize=unlimited --pid {target.pid}")
    assert target.alive


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (([3, 9, 1], ""), "old-python"),
        (([3, 13, 0], "t"), "free-threaded"),
    ],
)
def test_an_unsupported_interpreter_is_refused(hello, code):
    with pytest.raises(AttachError) as caught:
        check_interpreter(1, *hello)
    assert caught.value.code == code


def test_a_free_threaded_job_cannot_start_the_agent_either(monkeypatch):
    monkeypatch.setattr(sys, "abiflags", "t")
    with pytest.raises(AttachError) as caught:
        start_agent()
    assert caught.value.code == "free-threaded" and "_probe_agent" not in sys.modules


@pytest.mark.parametrize(("module", "name"), [(select, "poll"), (_thread, "allocate_lock")])
def test_a_monkey_patched_job_cannot_start_the_agent_either(monkeypatch, module, name):
    theirs = getattr(module, name)
    monkeypatch.setattr(module, name, lambda: theirs())
    with pytest.raises(AttachError) as caught:
        start_agent()
    assert caught.value.code == "monkey-patched" and "_probe_agent" not in sys.modules


def test_an_old_python_is_refused_before_it_is_touched(tmp_path):
    old = sorted(Path.home().glob(".pyenv/versions/3.[6789].*/bin/python"))
    if not old:
        pytest.skip("no Python older than 3.10 on this machine")
    target = Target(
        (str(old[-1]), "-c", "print('ready', flush=True); import time; time.sleep(100)"), tmp_path / "o", {}
    )
    try:
        target.wait_for("ready")
        assert refusal(target.pid).code == "old-python"
    finally:
        target.end()


def test_importing_attach_does_not_import_what_only_queries_need():
    heavy = ("zmq", "pyarrow", "duckdb", "numpy", "torch")
    script = f"import sys, probe.attach.delivery; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"
