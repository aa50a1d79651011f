"""The functions that an attach calls are those of the interpreter that runs the job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probe.attach.inject import target
from probe.attach.inject.target import _find_python

PROGRAM, LIBRARY, OTHER = "/opt/conda/bin/python3.12", "/usr/lib/libpython3.12.so.1.0", "/app/embedded.so"
LOADED = {OTHER: 1, LIBRARY: 2, PROGRAM: 3}


@pytest.mark.parametrize(
    ("exporting", "found"),
    [
        ({PROGRAM, LIBRARY}, PROGRAM),  # conda's and Debian's, beside an extension that is linked with the library
        ({LIBRARY, OTHER}, LIBRARY),
        ({OTHER}, OTHER),
    ],
)
def test_a_program_with_python_inside_goes_before_libpython(
    monkeypatch: pytest.MonkeyPatch, exporting: set[str], found: str
) -> None:
    bases = {LOADED[path] for path in exporting}
    monkeypatch.setattr(
        target, "Image", lambda memory, base: SimpleNamespace(base=base, symbol=lambda _: base in bases)
    )
    facts: Any = SimpleNamespace(pid=4242, memory=None)
    image: Any = _find_python(facts, LOADED, [(PROGRAM, LOADED[PROGRAM])], "python3.12")
    assert image.base == LOADED[found]
