"""What runs before and after each module call, on its thread: the call's row, and the marks of its backward.

Called by the forward tap.  Between two kernels no cache and no page table of the processor holds anything of ours any
more, so what counts is how many pages a call touches, about half a microsecond each: everything is in one function, and
what it uses comes as defaults of its arguments, side by side in one tuple (the cells of closures: +5 µs a call).  The
one invariant: a module's mark stands on a node that was made inside its call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ..modules import Modules
from ..rows import Stream
from .backward import Backward
from .dynamo import shielded_from_dynamo, unseen
from .nodes import latest_of, tensors_in

Before = Callable[[Any, Any, Any], int]
After = Callable[[Any, int, Any, int, int], None]
Trouble = Callable[[str], None]


def row_after(spans: Stream, modules: Modules, trouble: Trouble) -> After:
    """The row alone."""

    def after(
        module: Any,
        start: int,
        output: Any,
        flags: int,
        entered: int,
        clock: Any = perf_counter_ns,
        serial_of: Any = modules.serials.get,
        meet: Any = modules.meet,
        claim: Any = spans.claim,
        pack_into: Any = spans.pack_into,
        buffer: Any = spans.buffer,
        ident: Any = sys.modules["_thread"].get_ident,
        id: Any = id,
        trouble: Any = trouble,
    ) -> None:
        end = clock()
        try:
            serial = serial_of(id(module)) or meet(module)
            offset, seq = claim()
            pack_into(buffer, offset, start, end, serial, ident(), flags, seq)
        except Exception as error:  # inside a user's forward: nothing may escape
            trouble(f"forward: {error!r}")

    unseen(after)
    return shielded_from_dynamo(after)  # type: ignore[no-any-return]


def row_and_marks_after(spans: Stream, modules: Modules, backward: Backward, trouble: Trouble) -> After:
    """The row, and a mark where autograd will reach each tensor of the output."""

    def after(
        module: Any,
        start: int,
        output: Any,
        flags: int,
        entered: int,
        clock: Any = perf_counter_ns,
        serial_of: Any = modules.serials.get,
        meet: Any = modules.meet,
        claim: Any = spans.claim,
        pack_into: Any = spans.pack_into,
        buffer: Any = spans.buffer,
        ident: Any = sys.modules["_thread"].get_ident,
        id: Any = id,
        trouble: Any = trouble,
        tensor_type: Any = sys.modules["torch"].Tensor,
        isinstance: Any = isinstance,
        carriers_of: Any = backward.carriers.get,
        make_carriers: Any = backward.make_carriers,
        begun: Any = backward.begun,
        place: int = len(backward.begun) - 1,
        end_behind: Any = backward.end_behind,
    ) -> None:
        end = clock()
        try:
            serial = serial_of(id(module)) or meet(module)
            offset, seq = claim()
            pack_into(buffer, offset, start, end, serial, ident(), flags, seq)
            first = ~entered if entered < 0 else entered
            for tensor in (output,) if isinstance(output, tensor_type) else tensors_in(output, tensor_type):
                node = tensor.grad_fn
                if node is None:
                    continue
                number = node._sequence_nr()
                if number < first:  # the module returned what it was given: nothing of its own
                    continue
                carriers = carriers_of(serial) or make_carriers(serial)
                if entered < 0 and carriers[3] is not None:  # nothing before the module could bear its end mark
                    end_behind(serial, carriers[3], node, number, first)
                # A mere reshape of what the module made itself (as a Linear's output is, of three dimensions): an
                # in-place operation on a view replaces the view's node and would lose the mark; the base's stays.
                base = tensor._base
                if (
                    base is not None
                    and (below := base.grad_fn) is not None
                    and (inside := below._sequence_nr()) >= first
                    and base.numel() == tensor.numel()
                ):
                    begun[number & place] = number
                    node, number = below, inside
                node._register_hook_dict(carriers[1 if begun[number & place] == number else 0])
                begun[number & place] = number
        except Exception as error:  # inside a user's forward: nothing may escape
            trouble(f"forward: {error!r}")

    unseen(after)
    return shielded_from_dynamo(after)  # type: ignore[no-any-return]


def mark_before(modules: Modules, backward: Backward, trouble: Trouble) -> Before:
    """A mark where autograd is through with the input, unless the node there has one.

    before() returns the number of autograd's next node, inverted if no node could bear the mark.
    """

    def before(
        module: Any,
        args: Any,
        kwargs: Any,
        next_number: Any = sys.modules["torch"].autograd._get_sequence_nr,
        newest: Any = [0],  # noqa: B006
        tensor_type: Any = sys.modules["torch"].Tensor,
        begun: Any = backward.begun,
        place: int = len(backward.begun) - 1,
        last_behind: Any = backward.last_behind,
        len: Any = len,
        isinstance: Any = isinstance,
        bear_end: Any = backward.bear_end,
        trouble: Any = trouble,
    ) -> int:
        entered: int = next_number()
        try:
            if entered < newest[0]:  # another thread, which counts anew
                begun[:], last_behind[0] = [-1] * len(begun), -1
            newest[0] = entered
            if len(args) == 1 and not kwargs and isinstance(value := args[0], tensor_type):
                node = value.grad_fn
            else:
                node = latest_of(args, kwargs, tensor_type)
            if node is None:
                return ~entered
            number = node._sequence_nr()
            if begun[number & place] != number:  # else the begin mark there is this module's end
                bear_end(module, node)
        except Exception as error:  # inside a user's forward: nothing may escape
            trouble(f"backward: {error!r}")
        return entered

    unseen(before)
    return shielded_from_dynamo(before)  # type: ignore[no-any-return]
