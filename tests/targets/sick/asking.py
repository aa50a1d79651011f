"""Clients of a server, each a thread that asks again and again: `asking.py PORT COUNT PAUSE_S`."""

import ctypes
import random
import sys
import threading
import time
import urllib.request


def ask(port, pause_s):
    while True:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()
        time.sleep(pause_s * random.uniform(0.5, 1.5))


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: it ends with the server
    for _ in range(int(sys.argv[2])):
        threading.Thread(target=ask, args=(int(sys.argv[1]), float(sys.argv[3]))).start()
