"""What a process may do in its life, after it was told to: `living.py KIND GO`, begun once the file GO is there.

Prints what became of it; with an agent inside the output and the exit status are to be the same.  No torch.
"""

import atexit
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time

ALARMS = []
INTERPRETERS = None
SPINS = "while True: sum(range(100))"
AGAIN = 'import os; print(*(len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")))'
COUNTED = "import json, threading; print(json.dumps([threading.active_count()]), flush=True)"


def fork():
    for ending in ("sys.exit", "os._exit"):
        child = os.fork()
        if child == 0:
            thread = threading.Thread(target=lambda: print("in a thread of a child", flush=True))
            thread.start()
            thread.join()
            eval(ending)(7)
        print(ending, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(abs, range(-20, 0)))


def spawn():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(abs, range(-20, 0)))


def execv():
    os.execv(sys.executable, [sys.executable, "-S", "-c", AGAIN])


def into_plain():
    os.execv(sys.executable, [sys.executable, os.path.join(os.path.dirname(__file__), "plain.py")])


def exit_with_handlers():
    class Last:
        def __del__(self):
            os.write(1, b"finalized\n")

    sys.last = Last()
    atexit.register(print, "exit handler", flush=True)
    sys.exit(3)


def exit_beside_daemons():
    for _ in range(4):
        threading.Thread(target=exec, args=(SPINS,), daemon=True).start()
    sys.exit(4)


def exit_by_an_exception_while_threads_go_on():
    threading.Thread(target=lambda: time.sleep(0.2) or print("a thread that is waited for", flush=True)).start()
    raise SystemExit("by exception")


def faults():
    faulthandler.register(signal.SIGUSR1, sys.stdout, all_threads=False)
    os.kill(os.getpid(), signal.SIGUSR1)
    sys.stdout.flush()
    faulthandler.enable(sys.stdout, all_threads=False)
    with tempfile.TemporaryFile() as aside:  # it has all threads, so also an agent's
        faulthandler.dump_traceback_later(0.05, file=aside)
        while not os.fstat(aside.fileno()).st_size:
            time.sleep(0.01)
        faulthandler.cancel_dump_traceback_later()  # returns once it is written
    faulthandler._sigsegv()


def handlers():
    """The alarm has gone off every 2 ms since before the attach."""
    before, end = len(ALARMS), time.monotonic() + 10
    while len(ALARMS) <= before + 10 and time.monotonic() < end:
        time.sleep(0.01)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("alarms", len(ALARMS) > before + 10, "in the main thread", {*ALARMS} == {True})
    signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM", flush=True))
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def subinterpreters():
    """One was there before the attach."""
    new = INTERPRETERS.create()
    for each in (INTERPRETERS.first, new):
        INTERPRETERS.run_string(each, COUNTED)
        INTERPRETERS.destroy(each)
    print(len(INTERPRETERS.list_all()))


def prepare(kind):
    global INTERPRETERS
    if kind == "handlers":
        signal.signal(signal.SIGALRM, lambda *_: ALARMS.append(threading.current_thread() is threading.main_thread()))
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    if kind == "subinterpreters":
        INTERPRETERS = __import__("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
        INTERPRETERS.first = INTERPRETERS.create()
        INTERPRETERS.run_string(INTERPRETERS.first, "import json")


if __name__ == "__main__":
    prepare(sys.argv[1])
    print("ready", flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.005)
    globals()[sys.argv[1]]()
