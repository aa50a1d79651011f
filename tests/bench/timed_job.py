"""The acceptance job with a clock around each step: target of the benchmarks.

    python timed_job.py TIMES_FILE [job.py's arguments]

Appends one little-endian double a step to TIMES_FILE: time.perf_counter() at its end (the same clock in every
process of a host).
"""

import importlib.util
import struct
import sys
import time
from pathlib import Path

JOB = Path(__file__).resolve().parent.parent / "acceptance" / "document" / "job.py"


def main() -> None:
    spec = importlib.util.spec_from_file_location("job", JOB)
    job = importlib.util.module_from_spec(spec)
    sys.modules["job"] = job
    spec.loader.exec_module(job)
    step = job.Trainer.train_step
    with open(sys.argv.pop(1), "ab", buffering=0) as times:

        def timed_step(self):
            loss = step(self)
            times.write(struct.pack("<d", time.perf_counter()))
            return loss

        job.Trainer.train_step = timed_step
        job.main()


if __name__ == "__main__":
    main()
