"""The acceptance job, forked: target of tests to which it does not matter how it has started."""

import runpy
from pathlib import Path

import fast_import  # noqa: F401

runpy.run_path(str(Path(__file__).parents[1] / "acceptance" / "document" / "job.py"), run_name="__main__")
