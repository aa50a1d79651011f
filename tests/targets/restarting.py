"""A rank whose job fails in its first round and lives on in the next: run by torchrun --max-restarts 1.

    restarting.py FILE

Prints "round N" and its pid; the first round fails once FILE exists.  No torch.
"""

import os
import sys
import time

number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"round {number} pid {os.getpid()}", flush=True)
for _ in range(100_000):
    time.sleep(0.01)
    if number == 0 and os.path.exists(sys.argv[1]):
        break
sys.exit(1)
