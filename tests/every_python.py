"""Runs test modules that need only the standard library: `python every_python.py FILE …`, on any Python.

A stand-in for pytest where that is not installed: calls each test_* function, prints how many passed and the
traceback of each that failed, and exits 1 if one did.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(files: list[str]) -> int:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    passed = failed = 0
    for file in files:
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        for name, test in list(vars(module).items()):
            if name.startswith("test_"):
                try:
                    test()
                    passed += 1
                except Exception:
                    failed += 1
                    print(f"{name} failed", traceback.format_exc(), sep="\n")
    print(f"{passed} passed, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
