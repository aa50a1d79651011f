"""What a trainer calls a loader that it keeps deeper inside than variable_names.py looks.

Lightning's loops hold their loaders in a CombinedLoader, and beside it a source that bears the name of the hook that
gives them: `train_dataloader`, `val_dataloader`.  Invariant: as in variable_names.py.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from ..inspect.frames import outward
from .namespace import PACKAGES, attributes, code_owner
from .variable_names import MAX_FRAMES, Test, variables

_SOURCE = "_DataLoaderSource"


def trainer_name(frame: FrameType | None, is_loader: Test) -> str | None:
    """The name that the innermost loop of Lightning has for the loader, with its index if the loop has several."""
    for each in outward(frame, MAX_FRAMES):
        loop = _attributes(variables(each).get("self")) if code_owner(each) == PACKAGES else {}
        source, loaders = loop.get("_data_source"), _attributes(loop.get("_combined_loader")).get("_flattened")
        if type(source).__name__ != _SOURCE or type(loaders) is not list:
            continue
        name = _attributes(source).get("name")
        for index, loader in enumerate(loaders):
            if is_loader(loader) and type(name) is str:
                return name if len(loaders) == 1 else f"{name}[{index}]"
    return None


def _attributes(value: Any) -> dict[str, Any]:
    return dict(attributes(value))
