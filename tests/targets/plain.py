"""A Python process that has nothing to do with torch."""

import os
import time

print("ready", os.getpid(), flush=True)
while True:
    time.sleep(0.05)
