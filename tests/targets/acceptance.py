"""The acceptance job with a narrow model, forked: target of tests to which neither its size nor its start matters.

A step of the model as it is keeps a core busy for a tenth of a second, and tests wait for hundreds.  Batches come at
some rate, as they do from a disk, so that a job that is only looked at leaves the machine to others: 0.08 s a step, or
EXAMPLE_S for each of its eight examples, of which two workers make four each; none of that while the file HURRY exists.
"""

import os
import sys
import time
from pathlib import Path

import fast_import  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[1] / "acceptance" / "document"))

import job

EXAMPLE_S = float(os.environ.get("EXAMPLE_S", "0.02"))
HURRY = Path(os.environ.get("HURRY", "/nonexistent"))
job.Config.__init__.__defaults__ = (64, 64, 32, 4, 2)  # words, positions, width, heads and layers
example_of = job.Tokens.__getitem__


def slowly(self, index):
    if not HURRY.exists():
        time.sleep(EXAMPLE_S)
    return example_of(self, index)


job.Tokens.__getitem__ = slowly
job.main()
