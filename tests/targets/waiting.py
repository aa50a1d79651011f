"""A Python process whose main thread is where its argument says, for good.  No torch, standard library only."""

import ctypes
import os
import select
import signal
import sys
import threading
import time


class TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()


def sleep():
    time.sleep(1000)


def sleep_in_every_thread():
    for _ in range(3):
        threading.Thread(target=sleep, daemon=True).start()
    sleep()


def epoll():
    select.epoll().poll()


def pipe():
    reader, _writer = os.pipe()
    os.read(reader, 1)


def sigwait():
    signal.sigwait([signal.SIGUSR1])


def vfork():
    import subprocess

    subprocess.run(["sleep", "1000"])


def uninterruptible():
    """Its thread sleeps until a child, which shares its memory, has opened a FIFO: that of its second argument."""
    for _ in range(1000):
        action = (os.POSIX_SPAWN_OPEN, 9, sys.argv[2], os.O_RDONLY, 0)
        os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[action]), 0)
        print("went on", flush=True)


def spin():
    while True:
        pass


def masked_spin():
    """As in a signal handler: its signal is blocked."""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    spin()


def beside_a_library():
    ctypes.CDLL(sys.argv[2])
    print("loaded", flush=True)
    sleep()


def native_spin():
    """In C, without the GIL."""
    block = ctypes.create_string_buffer(1 << 24)
    while True:
        ctypes.memset(block, 1, 1 << 24)


def nanosleep():
    """A stop must neither end nor prolong the call (ERESTART_RESTARTBLOCK)."""
    libc = ctypes.CDLL(None, use_errno=True)
    while True:
        began = time.monotonic()
        result = libc.nanosleep(ctypes.byref(TimeSpec(0, 400_000_000)), None)
        took = time.monotonic() - began
        print("slept" if result == 0 and 0.4 <= took < 0.8 else f"broken: {result} {took}", flush=True)


def gil_held():
    ctypes.PyDLL(None).sleep(4)
    print("released", flush=True)
    time.sleep(1000)


def gil_held_by_a_thread():
    def hold():
        os.write(1, b"held by %d.\n" % threading.get_native_id())  # as a whole
        gil_held()

    threading.Thread(target=hold).start()
    spin()


def no_executable_pages():
    """A seccomp filter answers EACCES to mmap of anonymous memory with PROT_EXEC, as SELinux without execmem does."""

    def instruction(code, jt, jf, k):
        return code.to_bytes(2, "little") + bytes([jt, jf]) + k.to_bytes(4, "little")

    load, equal, any_bit, answer = 0x20, 0x15, 0x45, 0x06
    program = b"".join(
        [
            instruction(load, 0, 0, 0),  # the number
            instruction(equal, 0, 5, 9),  # mmap
            instruction(load, 0, 0, 16 + 2 * 8),  # its protection
            instruction(any_bit, 0, 3, 4),  # PROT_EXEC
            instruction(load, 0, 0, 16 + 3 * 8),  # its flags
            instruction(any_bit, 0, 1, 0x20),  # MAP_ANONYMOUS
            instruction(answer, 0, 0, 0x00050000 | 13),  # EACCES
            instruction(answer, 0, 0, 0x7FFF0000),  # allow
        ]
    )
    held = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(16)
    ctypes.memmove(head, (len(program) // 8).to_bytes(8, "little") + ctypes.addressof(held).to_bytes(8, "little"), 16)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, head, 0, 0) == 0  # PR_SET_SECCOMP
    print("filtered", flush=True)
    while True:
        time.sleep(0.01)


def memory_deny_write_execute():
    if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
        print("denied: none", flush=True)
    print("denied", flush=True)
    time.sleep(1000)


def no_threads_left():
    import resource

    os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    print("limited", flush=True)
    time.sleep(1000)


def small_files():
    """As in a program that embeds Python, a file that becomes too large ends it."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    print("limited", flush=True)
    time.sleep(1000)


def without_sockets():
    sys.modules["_socket"] = None
    time.sleep(1000)


def monkey_patched():
    """As gevent does it: no thread starts, and what threads wait with are functions of its own."""
    import _socket
    import _thread

    assert _socket
    ident, lock = _thread.get_ident, _thread.allocate_lock
    _thread.start_new_thread = lambda function, arguments: 1
    _thread.get_ident = lambda: ident()
    _thread.allocate_lock = lambda: lock()
    print("patched", flush=True)
    time.sleep(1000)


def wrapped_threads():
    """As debuggers do it: each thread runs some code of theirs first."""
    import _thread

    begin = _thread.start_new_thread
    _thread.start_new_thread = lambda function, arguments: begin(lambda: function(*arguments), ())
    print("wrapped", flush=True)
    time.sleep(1000)


def other_user():
    import binascii
    import importlib.util
    import json
    import socket

    assert binascii and importlib.util and json and socket  # a home that others may not enter may hold this Python
    os.setuid(65534)
    print("changed", flush=True)
    time.sleep(1000)


print("ready", flush=True)
globals()[sys.argv[1]]()
