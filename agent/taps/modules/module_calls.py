"""The functions that run before and after each module call, on its thread: they write its row and place its marks.

The forward tap calls them.  Between two kernels the processor's caches and page tables hold nothing of ours any more,
so the cost is the number of objects that a call touches, up to 2 µs each.  So everything is in one function, even where
that repeats code; what a function always uses comes as defaults of its arguments, side by side in one tuple (a closure
costs 5 µs more); everything else is looked up on Backward.
Invariant: a module's mark is on a node that was made inside its call.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ....streams import EVAL_MODE, NO_GRAD
from ...storage.rows import Stream
from ..dynamo import shielded_from_dynamo
from .autograd_nodes import latest_of, tensors_in
from .backward import REMEMBERED, Backward

Before = Callable[[Any, Any, Any], int]
After = Callable[[Any, int, Any, int, int], None]


def row_after(spans: Stream, backward: Backward) -> After:
    """Writes the row only."""

    def after(
        module: Any,
        start: int,
        output: Any,
        flags: int,
        entered: int,
        clock: Any = perf_counter_ns,
        id: Any = id,
        serial_of: Any = backward.modules.serials.get,
        claim: Any = spans.claim,
        pack_into: Any = spans.pack_into,
        buffer: Any = spans.buffer,
        ident: Any = get_ident,
        grad_enabled: Any = sys.modules["torch"].is_grad_enabled,
        backward: Any = backward,
    ) -> None:
        end = clock()
        try:
            if not grad_enabled():
                flags |= NO_GRAD
            if not module.training:
                flags |= EVAL_MODE
            serial = serial_of(id(module)) or backward.modules.meet(module)
            offset, seq = claim()
            pack_into(buffer, offset, start, end, serial, ident(), flags, seq)
        except RecursionError:  # not even report_forward_fault() can be called, and the job's own call needs less
            pass
        except Exception as error:  # inside a user's forward: no exception may escape
            backward.report_forward_fault(error)

    return shielded_from_dynamo(after)  # type: ignore[no-any-return]


def row_and_marks_after(spans: Stream, backward: Backward) -> After:
    """Writes the row, and places a mark where autograd will reach each tensor of the output."""

    def after(
        module: Any,
        start: int,
        output: Any,
        flags: int,
        entered: int,
        clock: Any = perf_counter_ns,
        id: Any = id,
        carriers_of: Any = backward.carriers.get,
        claim: Any = spans.claim,
        pack_into: Any = spans.pack_into,
        buffer: Any = spans.buffer,
        ident: Any = get_ident,
        grad_enabled: Any = sys.modules["torch"].is_grad_enabled,
        tensor_type: Any = sys.modules["torch"].Tensor,
        tracing: Any = sys.modules["torch"]._C._get_tracing_state,
        begun: Any = backward.begun,
        place: int = REMEMBERED - 1,
        backward: Any = backward,
    ) -> None:
        end = clock()
        try:
            if not grad_enabled():
                flags |= NO_GRAD
            if not module.training:
                flags |= EVAL_MODE
            carriers = carriers_of(id(module)) or backward.make_carriers(module)
            offset, seq = claim()
            pack_into(buffer, offset, start, end, carriers[0], ident(), flags, seq)
            first = ~entered if entered < 0 else entered
            for tensor in (output,) if output.__class__ is tensor_type else tensors_in(output, tensor_type):
                node = tensor.grad_fn
                if node is None:
                    continue
                number = node._sequence_nr()
                if number < first:  # the module returned its argument, nothing of its own
                    continue
                if entered < 0:  # no node before the module could carry its end mark
                    backward.end_behind(carriers, node, number, first)
                # If the output only reshapes what the module made (such as a Linear's output of three dimensions), an
                # in-place operation on it would replace its node and lose the mark; its base keeps its node.
                base = tensor._base
                if (
                    base is not None
                    and (below := base.grad_fn) is not None
                    and (inside := below._sequence_nr()) >= first
                    and tracing() is None  # torch.jit.trace would record numel()
                    and base.numel() == tensor.numel()
                ):
                    begun[number & place] = number
                    node, number = below, inside
                node._register_hook_dict(carriers[2 if begun[number & place] == number else 1])
                begun[number & place] = number
        except RecursionError:  # not even report_forward_fault() can be called, and the job's own call needs less
            pass
        except Exception as error:  # inside a user's forward: no exception may escape
            backward.report_forward_fault(error)

    return shielded_from_dynamo(after)  # type: ignore[no-any-return]


def mark_before(backward: Backward) -> Before:
    """Places a mark where autograd has finished with the input, unless the node there has one.

    before() returns the number of autograd's next node, inverted if no node could carry the mark.
    """

    def before(
        module: Any,
        args: Any,
        kwargs: Any,
        next_number: Any = sys.modules["torch"].autograd._get_sequence_nr,
        len: Any = len,
        tensor_type: Any = sys.modules["torch"].Tensor,
        begun: Any = backward.begun,
        passed: Any = backward.passed,
        place: int = REMEMBERED - 1,
        backward: Any = backward,
    ) -> int:
        entered: int = next_number()
        try:
            if entered < begun[-1]:
                backward.another_thread()
            begun[-1] = entered
            if len(args) == 1 and not kwargs and (value := args[0]).__class__ is tensor_type:
                node = value.grad_fn
            else:
                node = latest_of(args, kwargs, tensor_type)
            if node is None:
                return ~entered
            number = node._sequence_nr()
            if begun[number & place] != number:  # else the begin mark there also marks this module's end
                carriers = backward.carriers.get(id(module)) or backward.make_carriers(module)
                # A node that is older than the last pass, or by many others, may stay: it gets one mark of each module.
                if passed[0] <= number < entered < number + REMEMBERED or backward.is_first_end(carriers[0], node):
                    node._register_hook_dict(carriers[3])
        except RecursionError:  # as in after()
            pass
        except Exception as error:  # inside a user's forward: no exception may escape
            backward.report_fault(error)
        return entered

    return shielded_from_dynamo(before)  # type: ignore[no-any-return]
