"""Where the user's own references begin: the variables of frames, and the modules of the user's program.

Made by look.py.  Invariant: frames and the globals of libraries are known as seen, so the walk does not enter them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from ..inspect import frame_locals
from ..inspect.classes import SPACE, isinstance_of
from ..inspect.frames import frames_of_others, is_of_agent, outward
from ..names.namespace import USERS, empty_running, file_owner, read_running

_MOST_FRAMES = 256  # of a thread
_space_of: Any = vars(ModuleType)["__dict__"].__get__


class Roots:
    """users: names of the user's modules; spaces: id of a module's globals -> the module's name; frames: id of each
    frame of a thread."""

    def __init__(self) -> None:
        self.users: set[str] = set()
        self.spaces: dict[int, str] = {}
        self.frames: set[int] = set()
        owners = dict[str, int]()  # of packages: there are thousands of modules
        for name, module in list(sys.modules.items()):
            if isinstance_of(module, ModuleType) and type(name) is str:
                space = _space_of(module)
                self.spaces[id(space)] = name
                if name == "__main__" or self._owner(name, space.get("__file__"), owners) == USERS:
                    self.users.add(name)

    def _owner(self, name: str, file: Any, owners: dict[str, int]) -> int | None:
        package = name.partition(".")[0]
        if package not in owners and type(file) is str:
            owners[package] = file_owner(file)
        return owners.get(package)

    def is_users_class(self, kind: Any) -> bool:
        module = SPACE(kind).get("__module__")
        return type(module) is str and module in self.users

    def variables(self, frame: FrameType | None) -> Iterator[tuple[Any, str]]:
        """(value, its name) in the frames of all threads, outer ones first, this thread's before others.

        frame: the innermost of this thread's that is the job's; None: this thread is ours.
        """
        stacks = [] if frame is None else [list(outward(frame, _MOST_FRAMES))]
        here, tops = len(stacks), frames_of_others()
        stacks += [list(outward(top, _MOST_FRAMES)) for _, top in sorted(tops.items())]
        self.frames |= {id(each) for stack in stacks for each in stack}
        for number, stack in enumerate(stacks):
            copies = frame_locals.Copies()
            shown = [each for each in reversed(stack) if frame_locals.has_slots(each) and not is_of_agent(each)]
            for each in shown:
                values = frame_locals.read(each) if number < here else read_running(each, copies)
                for name, value in values.items():
                    yield value, f"{each.f_code.co_name}().{name}"
            if number >= here:
                empty_running(shown, copies)

    def globals(self) -> Iterator[tuple[dict[str, Any], str]]:
        """(globals, name) of the user's modules, those of the program itself first and without a name."""
        for name in sorted(self.users, key=lambda name: (name != "__main__", name)):
            module = sys.modules.get(name)
            if isinstance_of(module, ModuleType):
                yield _space_of(module), "" if name == "__main__" else name
