"""Threads that are almost always inside of malloc, free or the loader, without the GIL.

    python adversary.py [THREADS]

regcomp allocates for some milliseconds at a time; dlopen and dlclose of a library take the loader's locks.
"""

import ctypes
import sys
import threading

libc = ctypes.CDLL(None)
libc.dlopen.restype = ctypes.c_void_p
PATTERN = b"(" + b"|".join(b"[a-f]%d(x|y|z){2,7}" % number for number in range(20)) + b")*"
LIBRARY = b"libresolv.so.2"


def allocate():
    compiled = ctypes.create_string_buffer(1024)  # a regex_t takes 64 bytes
    while True:
        if libc.regcomp(compiled, PATTERN, 1) == 0:
            libc.regfree(compiled)


def load():
    while True:
        handle = libc.dlopen(LIBRARY, 2)
        if handle:
            libc.dlclose(ctypes.c_void_p(handle))


threads = [allocate] * (int(sys.argv[1]) if len(sys.argv) > 1 else 8)
for work in (*threads, load):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
allocate()
