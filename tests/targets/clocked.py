"""The acceptance job's model, wider, with its own clock round forward, backward and optimizer.step: target of tests.

    python clocked.py TIMES_FILE

One JSON array a step goes to TIMES_FILE: [step, forward, backward, step] in seconds.  The model is so wide that also on
a fast machine a stage takes long beside what lies between two clocks, at a boundary some 0.2 ms.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import fast_import  # noqa: F401
import torch
import torch.nn.functional as F

JOB = Path(__file__).resolve().parent.parent / "acceptance" / "document" / "job.py"


def main() -> None:
    spec = importlib.util.spec_from_file_location("job", JOB)
    job = importlib.util.module_from_spec(spec)
    sys.modules["job"] = job
    spec.loader.exec_module(job)
    torch.set_num_threads(1)
    model = job.GPT(job.Config(hidden_size=192))
    optimizer = torch.optim.AdamW(model.parameters())
    clock = time.perf_counter
    with open(sys.argv[1], "w", buffering=1) as times:
        for step in range(100_000):
            ids = torch.randint(0, 512, (8, 65), generator=torch.Generator().manual_seed(step))
            start = clock()
            logits = model(ids[:, :-1])
            forwarded = clock()
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            begin = clock()
            loss.backward()
            backwarded = clock()
            optimizer.step()
            stepped = clock()
            optimizer.zero_grad()
            times.write(json.dumps([step, forwarded - start, backwarded - begin, stepped - backwarded]) + "\n")
            if step == 3:
                print(f"ready {os.getpid()}", flush=True)


if __name__ == "__main__":
    main()
