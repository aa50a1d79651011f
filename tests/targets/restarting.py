"""A rank whose job fails in its first round and lives on in the next: run by torchrun --max-restarts 1.

Prints "round N" and its pid.  No torch.
"""

import os
import sys
import time

number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"round {number} pid {os.getpid()}", flush=True)
for _ in range(100 if number else 5):
    for _ in range(100):
        time.sleep(0.01)
sys.exit(1)
