"""A Python process without `threading`; it imports it when asked, and prints whether it is on its main thread."""

import sys
import time

asked = False
print("ready", "threading" in sys.modules, flush=True)
while not asked:
    time.sleep(0.01)

import threading  # noqa: E402

print("main", threading.current_thread() is threading.main_thread(), flush=True)
while True:
    time.sleep(0.01)
