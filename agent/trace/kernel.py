"""The code that is swapped into a traced function: it runs the function's own code, and a hook before and after it.

Called by the traces.  The kernel has the parameters, free variables, names and kind of the code that it stands for, so
whatever looks at the function sees no difference, and its own code gets the function's own cells.  Invariant: the
kernel refers to nothing but its two hooks, and keeps no argument alive while the function's own code runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

from ...streams import FAILED

VARARGS, VARKEYWORDS, GENERATOR, COROUTINE, ITERABLE, ASYNC_GENERATOR = 0x4, 0x8, 0x20, 0x80, 0x100, 0x200  # code flags
BEFORE, AFTER, _OWN = "probe: before", "probe: after", "_probe_own"  # the hooks' places: no parameter is called so
_SOURCE = """
def _({free}):
    {async_}def _probe_kernel({parameters}):
        def {own}(): ({free})
        _probe_before = "{before}"
        _probe_after = "{after}"
        _probe_call = _probe_before({first}, {since})
        try:
            _probe_result = {awaiting}{own}({arguments})
        {stopped}except BaseException:
            _probe_after(_probe_call, {failed})
            raise
        _probe_after(_probe_call, 0)
        return _probe_result
"""
_STOPPED = """except GeneratorExit:
            _probe_after(_probe_call, 0)
            raise
        """


class Hook(partial[Any]):
    """A constant of a kernel.  A copy of the traced function in another process (cloudpickle) calls nothing of ours."""

    def __reduce__(self) -> Any:
        return eval, ("lambda *_: None",)


class NoKernel(ValueError):
    """No kernel can stand for this code; the text says why."""


class Parameters:
    """The names of a code's parameters, by kind."""

    def __init__(self, code: CodeType) -> None:
        names, count, keywords = code.co_varnames, code.co_argcount, code.co_kwonlyargcount
        self.positional, self.only = names[:count], code.co_posonlyargcount
        self.keywords = names[count : count + keywords]
        rest = iter(names[count + keywords :])
        self.args = next(rest) if code.co_flags & VARARGS else ""
        self.kwargs = next(rest) if code.co_flags & VARKEYWORDS else ""

    @property
    def named(self) -> tuple[str, ...]:
        """Those with a name of their own."""
        return self.positional + self.keywords

    def declared(self) -> str:
        """As a `def` has them; the defaults stay with the function."""
        star = [f"*{self.args}"] if self.args else ["*"] if self.keywords else []
        before, after = self.positional[: self.only], self.positional[self.only :]
        slash = ["/"] if before else []
        return ", ".join([*before, *slash, *after, *star, *self.keywords, *self._double_star()])

    def handed_on(self) -> str:
        """As a call passes them on: each is let go of where it is taken."""
        moved = [_moved(name) for name in self.positional]
        moved += [f"*{_moved(self.args)}"] if self.args else []
        moved += [f"{name}={_moved(name)}" for name in self.keywords]
        return ", ".join([*moved, *([f"**{_moved(self.kwargs)}"] if self.kwargs else [])])

    def _double_star(self) -> list[str]:
        return [f"**{self.kwargs}"] if self.kwargs else []

    def at(self, place: int) -> str:
        """The expression for the argument at this place, None where there is none."""
        if place < len(self.positional):
            return self.positional[place]
        place -= len(self.positional)
        return f"({self.args}[{place}:{place + 1}] or (None,))[0]" if self.args else "None"

    def every(self) -> str:
        """The expression for a tuple of all arguments."""
        values = [*self.named, *([f"*{self.args}"] if self.args else [])]
        values += [self.kwargs, f"*{self.kwargs}.values()"] if self.kwargs else []
        return f"({', '.join(values)},)" if values else "()"


def _moved(name: str) -> str:
    return f"({name}, {name} := None)[0]"


def kernel_of(original: CodeType, before: Callable[..., Any], after: Callable[..., None], place: int,
              since: str) -> CodeType:  # fmt: skip
    """The kernel for this code.  before(argument at `place`, value of the parameter `since`, or all arguments where it
    is none, or None without a `since`) gives what after(that, flags) gets.  Raises NoKernel."""
    parameters, kind = Parameters(original), original.co_flags
    is_generator = bool(kind & GENERATOR)
    source = _SOURCE.format(
        free=", ".join(original.co_freevars) + "," * bool(original.co_freevars),
        async_="async " if kind & COROUTINE else "", parameters=parameters.declared(), own=_OWN,
        first=parameters.at(place), since=_since(parameters, since),
        awaiting="await " if kind & COROUTINE else "yield from " if is_generator else "",
        arguments=parameters.handed_on(), stopped=_STOPPED if is_generator else "", failed=FAILED,
        before=BEFORE, after=AFTER,
    )  # fmt: skip
    kernel = _inner(_inner(_compiled(source, original)))
    own = _inner(kernel)
    if not kernel.co_freevars == own.co_freevars == original.co_freevars:
        raise NoKernel("its free variables are not in their usual order")
    qualified = {"co_qualname": original.co_qualname} if hasattr(original, "co_qualname") else {}
    hooks = {BEFORE: Hook(before), AFTER: Hook(after)}
    constants = (original if each is own else _replaced(each, hooks) for each in kernel.co_consts)
    return kernel.replace(
        co_consts=tuple(constants), co_name=original.co_name,
        co_flags=kernel.co_flags | kind & ITERABLE, **qualified,
    )  # fmt: skip


def _since(parameters: Parameters, since: str) -> str:
    return since if since in parameters.named else parameters.every() if since else "None"


def _replaced(constant: Any, hooks: dict[str, Hook]) -> Any:
    return hooks.get(constant, constant) if type(constant) is str else constant


def _compiled(source: str, original: CodeType) -> CodeType:
    """All of it stands in the line where the original begins.  Raises NoKernel."""
    try:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if hasattr(node, "lineno"):
                node.lineno = node.end_lineno = original.co_firstlineno  # type: ignore[attr-defined]
        return compile(tree, original.co_filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise NoKernel(f"its parameters are no names: {error.msg}") from None


def _inner(code: CodeType) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType))
