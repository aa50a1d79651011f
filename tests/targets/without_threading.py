"""A Python process that has not imported `threading`: its main thread sleeps in small steps, or in one."""

import sys
import time

print("ready", "threading" in sys.modules, flush=True)
while True:
    time.sleep(0.01 if sys.argv[1] == "small" else 1000)
