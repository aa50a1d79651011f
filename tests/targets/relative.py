"""The main thread is in a relative wait all the time, and says when one ends early, late, or by EINTR.

    python relative.py nanosleep|poll|futex

Prints "waited N" now and then; "broken: …" for an error, "off by MS" at the end of each wait that is.
"""

import ctypes
import sys
import time

WAIT_S, OFF_S = 0.02, 0.01
libc = ctypes.CDLL(None, use_errno=True)


class TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def nanosleep():
    return libc.nanosleep(ctypes.byref(TimeSpec(0, int(WAIT_S * 1e9))), None) == 0


def poll():
    return libc.poll(None, 0, int(WAIT_S * 1e3)) == 0


def futex():
    """FUTEX_WAIT_BITSET takes an absolute time; FUTEX_WAIT_PRIVATE a relative one."""
    word = ctypes.c_int(0)
    result = libc.syscall(202, ctypes.byref(word), 128, 0, ctypes.byref(TimeSpec(0, int(WAIT_S * 1e9))), None, 0)
    return result == -1 and ctypes.get_errno() == 110  # ETIMEDOUT


wait = globals()[sys.argv[1]]
print("ready", flush=True)
for number in range(10**9):
    began = time.monotonic()
    good = wait()
    off = abs(time.monotonic() - began - WAIT_S)
    if not good:
        print("broken:", ctypes.get_errno(), flush=True)
    elif off > OFF_S:
        print(f"off by {off * 1e3:.1f} ms", flush=True)
    if number % 50 == 49:
        print("waited", number + 1, flush=True)
