"""Attaching to small real processes: wherever their threads are, whatever goes wrong, they stay as they were.

The agent delivered here is a few lines, so that nothing but the attach itself is tested.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from delivering import interpreters, put
from until import states, until

from probe.attach import delivery
from probe.attach.inject.injection import PENDING_CALL, THREAD
from probe.attach.rendezvous import PREFIX
from probe.errors import AttachError
from target import TARGETS, Start, Target

pytestmark = pytest.mark.alone  # it looks at the clock

DEBIANS = "/usr/bin/python3"
OPENING = ("2", "257")  # open, openat
ASLEEP = ("35", "230")  # nanosleep, clock_nanosleep
PTHREAD_CREATE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
int pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*begin)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    if (getenv("CREATE")[0] == 'f') return EAGAIN;
    usleep(400000);
    return real(id, attributes, begin, argument);
}
"""


def refusal(pid: int, timeout: float = 5.0, **more) -> AttachError:
    with pytest.raises(AttachError) as caught:
        put(pid, timeout=timeout, **more)
    assert caught.value.hint
    return caught.value


def interpreter(version: str) -> str:
    path = dict(interpreters()).get(version)
    if path is None:
        pytest.skip(f"no Python {version} on this machine")
    return path


@pytest.fixture
def start_python(tmp_path):
    """Starts a target with another interpreter, ended with the test."""
    targets: list[Target] = []

    def start_python(python: str, script: str, *args: str, ready: str = "ready") -> Target:
        command = (python, "-S", str(TARGETS / script), *args)  # -S: no site of theirs that imports threading
        targets.append(Target(command, tmp_path / f"python-{len(targets)}.txt", {}))
        targets[-1].wait_for(ready)
        return targets[-1]

    yield start_python
    for target in targets:
        target.end()


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def until_asleep(pid: int, tid: int) -> None:
    """Until this thread, which has said that it is about to hold the GIL, is in the call in which it does."""
    until(lambda: Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()[0] in ASLEEP)


def rendezvous_directories(folder: Path) -> list[str]:
    """folder: the target's TMPDIR, which no other attach on this machine uses."""
    return [name for name in os.listdir(folder) if name.startswith(PREFIX)]


@pytest.mark.parametrize(
    "where", ["lock", "sleep", "epoll", "pipe", "sigwait", "vfork", "spin", "native_spin", "nanosleep"]
)
def test_a_process_can_be_attached_to_wherever_its_only_thread_is(start: Start, where):
    target = start("waiting.py", where)
    before = threads(target.pid)
    for _ in range(3):
        delivered = put(target)
        assert delivered.reply["pid"] == target.pid
        assert delivered.injected.way == THREAD
    until(lambda: threads(target.pid) == before)
    assert target.alive
    if where == "nanosleep":
        target.wait_for("slept", times=target.output.count("slept") + 2)
        assert "broken" not in target.output


@pytest.mark.parametrize("length", [75, 76, 160])
def test_a_temporary_directory_too_long_for_a_socket_is_skipped(start: Start, short_folder: Path, length: int):
    folder = short_folder / "long" / ("x" * (length - len(f"{short_folder}/long/")))
    folder.mkdir(parents=True)
    assert len(str(folder)) == length
    put(start("waiting.py", "sleep", env={"TMPDIR": str(folder)}))


def test_an_attach_leaves_only_its_module(short_folder: Path, start: Start):
    target = start("waiting.py", "sleep", env={"TMPDIR": str(short_folder)})
    first = put(target).reply
    assert [name for name in first["main"] if "probe" in name] == []
    assert first["path"] == put(target).reply["path"]
    assert [name for name in first["modules"] if name.startswith("_probe")] == [
        "_probe_agent", "_probe_agent.agent", "_probe_agent.agent.main",
    ]  # fmt: skip
    until(lambda: threads(target.pid) == 1)
    maps, files = Path(f"/proc/{target.pid}/maps"), Path(f"/proc/{target.pid}/fd")
    before = len(maps.read_text().splitlines()), len(list(files.iterdir()))
    for _ in range(20):
        put(target)
        until(lambda: threads(target.pid) == 1)  # or the next thread gets a stack of its own
    after = len(maps.read_text().splitlines()), len(list(files.iterdir()))
    assert after[0] <= before[0] + 5  # arenas that malloc and the interpreter keep; a page an attach would be 20
    assert after[1] == before[1]
    assert rendezvous_directories(short_folder) == []


def test_an_agent_that_fails_is_removed_and_reported(start: Start):
    target = start("waiting.py", "sleep")
    error = refusal(target.pid, text="def start(facts):\n    raise KeyError('why')\n")
    assert error.code == "agent-failed"
    assert "KeyError: 'why' (<probe>/agent/main.py:2)" in error.message
    left = put(target).reply["modules"]
    assert [name for name in left if name.startswith("_probe")] == [
        "_probe_agent", "_probe_agent.agent", "_probe_agent.agent.main",
    ]  # fmt: skip
    assert put(target).reply["already"]


def test_an_agent_of_another_version_is_stopped_and_replaced(start: Start):
    target = start("waiting.py", "sleep")
    old = "def start(facts):\n    import sys\n    sys.modules['_probe_agent'].version = 'old'\n    return {}\n"
    put(target, old + "def stop():\n    import sys\n    sys.stdout.write('stopped\\n'); sys.stdout.flush()\n")
    assert not put(target).reply["already"]
    assert target.output.count("stopped") == 1
    assert put(target).reply["already"]


def test_an_agent_of_the_same_code_in_another_version_is_replaced_at_once(start: Start, monkeypatch):
    target = start("waiting.py", "sleep")
    monkeypatch.setattr(delivery, "__version__", "0.0.1")
    put(target)
    monkeypatch.undo()
    assert not put(target).reply["already"]
    assert put(target).reply["already"]


def test_attaches_at_the_same_moment_leave_one_agent(start: Start):
    for _ in range(5):
        target = start("waiting.py", "lock")
        children = [_in_child(lambda pid=target.pid: int(put(pid).reply["already"])) for _ in range(4)]
        assert sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children) == [0, 1, 1, 1]
        target.end()


def _in_child(work) -> int:
    """Forks a process that exits with what `work` returns, 99 when it raises."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
        os._exit(work())
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(99)


def test_a_held_gil_is_reported_and_nothing_runs_later(start: Start, tmp_path):
    target = start("waiting.py", "gil_held")
    until_asleep(target.pid, target.pid)
    trace = tmp_path / "ran"
    error = refusal(
        target.pid, timeout=1.0, text=f"def start(facts):\n    open({str(trace)!r}, 'w')\n    return {{}}\n"
    )
    assert error.code == "gil-held" and re.search(r": its main thread, asleep[^,]*, holds the GIL", error.message)
    assert "released" not in target.output
    target.wait_for("released")
    until(lambda: threads(target.pid) == 1)
    assert not trace.exists()
    assert put(target).reply["pid"] == target.pid


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_thread_that_holds_the_gil_is_reported(start_python, version):
    target = start_python(interpreter(version), "waiting.py", "gil_held_by_a_thread", ready="held by")
    holder = target.output.partition("held by ")[2].partition(".")[0]
    until_asleep(target.pid, int(holder))
    error = refusal(target.pid, timeout=0.6)
    assert error.code == "gil-held" and f": its thread {holder} (" in error.message


def test_ctrl_c_ends_a_waiting_attach_at_once_and_removes_the_rendezvous(short_folder: Path, start: Start):
    target = start("waiting.py", "gil_held", env={"TMPDIR": str(short_folder)})
    until_asleep(target.pid, target.pid)
    child = _in_child(lambda: _interrupted(lambda: put(target)))
    until(lambda: rendezvous_directories(short_folder) != [])
    until(lambda: threads(target.pid) == 2)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "released" not in target.output
    assert rendezvous_directories(short_folder) == []
    target.wait_for("released")
    until(lambda: threads(target.pid) == 1)


def _interrupted(work) -> int:
    try:
        work()
    except KeyboardInterrupt:
        return 0
    return 1


def test_a_target_that_cannot_connect_is_not_blamed_on_the_gil(start: Start):
    target = start("waiting.py", "without_sockets")
    assert refusal(target.pid, timeout=0.7).code == "no-connection"


def test_a_target_that_gevent_has_patched_is_refused_and_nothing_stays(short_folder: Path, start: Start):
    target = start("waiting.py", "monkey_patched", ready="patched", env={"TMPDIR": str(short_folder)})
    before = sorted(os.listdir(f"/proc/{target.pid}/fd"))
    error = refusal(target.pid)
    assert error.code == "monkey-patched" and "gevent" in error.message
    until(lambda: threads(target.pid) == 1)
    assert sorted(os.listdir(f"/proc/{target.pid}/fd")) == before
    assert target.alive and rendezvous_directories(short_folder) == []


def test_a_debugger_that_wraps_new_threads_is_no_obstacle(start: Start):
    assert put(start("waiting.py", "wrapped_threads", ready="wrapped")).reply["already"] is False


@pytest.mark.parametrize("version", ["3.11", "3.14"])
def test_an_interpreter_that_is_not_there_yet_is_waited_for(tmp_path: Path, version: str):
    """It stands where it looks for its library."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.symlink_to(Path(interpreter(version)).resolve())
    os.mkfifo(tmp_path / "pyvenv.cfg")
    target = subprocess.Popen([python, TARGETS / "plain.py"], stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: Path(f"/proc/{target.pid}/syscall").read_text().split()[0] in OPENING)
        open_later = threading.Timer(0.7, (tmp_path / "pyvenv.cfg").write_text, ("",))
        open_later.start()
        assert put(target.pid).injected.way == THREAD
        open_later.join()
    finally:
        target.kill()
        target.communicate()


def test_a_libpython_that_an_extension_brings_along_is_not_taken_for_the_interpreter(start_python):
    """Debian's Python has the interpreter inside, and libpython exports all of its functions too."""
    python, script = DEBIANS, "print(*__import__('sysconfig').get_config_vars('LIBDIR', 'INSTSONAME'), sep='/')"
    if shutil.which(python) is None:
        pytest.skip(f"no {python} on this machine")
    library = subprocess.run([python, "-c", script], capture_output=True, text=True).stdout.strip()
    if not os.path.isfile(library):
        pytest.skip(f"no libpython beside {python} on this machine")
    target = start_python(python, "waiting.py", "beside_a_library", library, ready="loaded")
    assert put(target).reply["pid"] == target.pid
    assert put(target).reply["already"]
    assert target.alive


def test_an_agent_that_starts_too_slowly_is_removed(start: Start):
    target = start("waiting.py", "sleep")
    slow = "import time, sys\ndef start(facts):\n    time.sleep(1.5)\n    return {}\n"
    error = refusal(target.pid, timeout=1.0, text=slow + "def stop():\n    print('stopped', flush=True)\n")
    assert error.code == "attach-timeout"
    target.wait_for("stopped")
    until(lambda: threads(target.pid) == 1)
    assert not put(target).reply["already"]


def test_where_executable_pages_are_refused_the_main_thread_runs_the_text(start: Start):
    target = start("waiting.py", "no_executable_pages", ready="filtered")
    assert put(target).injected.way == PENDING_CALL
    assert put(target).reply["already"]
    assert target.alive


def test_where_no_page_may_become_executable_a_new_thread_runs_the_text(start: Start):
    target = start("waiting.py", "memory_deny_write_execute", ready="denied")
    if "denied: none" in target.output:
        pytest.skip("this kernel has no PR_SET_MDWE (before 6.3)")
    assert put(target).injected.way == THREAD
    assert put(target).reply["already"]


@pytest.fixture(scope="module")
def pthread_create(tmp_path_factory) -> str:
    """A library with one of its own, that is slow or fails: CREATE says which."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) on this machine")
    source, library = (tmp_path_factory.mktemp("preload") / name for name in ("create.c", "create.so"))
    source.write_text(PTHREAD_CREATE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return str(library)


def test_a_slow_pthread_create_only_takes_its_time(start: Start, pthread_create: str):
    target = start("waiting.py", "nanosleep", env={"LD_PRELOAD": pthread_create, "CREATE": "slow"})
    assert put(target).injected.stopped_ms < 400  # libc's own is called; the bootstrap's threads go by theirs
    target.wait_for("slept", times=target.output.count("slept") + 2)
    assert "broken" not in target.output


def test_a_failing_pthread_create_is_reported_and_nothing_stays(short_folder: Path, start: Start, pthread_create: str):
    env = {"LD_PRELOAD": pthread_create, "CREATE": "fail", "TMPDIR": str(short_folder)}
    target = start("waiting.py", "nanosleep", env=env)
    error = refusal(target.pid, timeout=1.0)
    assert error.code == "no-connection" and "a new thread" in error.message
    until(lambda: threads(target.pid) == 1)
    target.wait_for("slept", times=target.output.count("slept") + 2)
    assert "broken" not in target.output and rendezvous_directories(short_folder) == []


def test_a_process_that_may_not_start_threads_is_refused(start: Start):
    target = start("waiting.py", "no_threads_left", ready="limited")
    error = refusal(target.pid)
    assert error.code == "no-thread"
    assert "ulimit" in error.hint
    until(lambda: states(target.pid) == "S")  # it has to run to come back to its sleep


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_agent_does_not_import_threading_whose_importer_would_become_its_main_thread(start_python, probe, version):
    target = start_python(interpreter(version), "without_threading.py", ready="ready False")
    probe("attach", target.pid)
    probe(target.pid, "query", "SELECT * FROM probe.agents")
    assert probe(target.pid, "eval", "--now", "import sys; print('threading' in sys.modules)").stdout == "False\n"
    probe(target.pid, "eval", "--now", "import sys; sys.modules['__main__'].asked = True")
    target.wait_for("main True")


def _age(directory: str) -> None:
    os.utime(directory, (time.time() - 1000, time.time() - 1000))


@pytest.mark.parametrize("name", [f"{PREFIX}{'ab' * 8}", "probe-0-0123abcd"], ids=["rendezvous", "agent's folder"])
def test_a_stale_folder_is_removed_unless_somebody_listens_in_it(start: Start, name):
    import socket

    target = start("waiting.py", "sleep")
    directory = f"/tmp/{name}"
    os.mkdir(directory, 0o700)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/s")
            listener.listen(1)
            _age(directory)
            put(target)
            assert os.path.exists(f"{directory}/s")
        _age(directory)
        put(target)
        assert not os.path.exists(directory)
    finally:
        subprocess.run(["rm", "-rf", directory], check=True)
