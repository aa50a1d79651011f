"""Arithmetic and memory traffic of an operator, from the shapes and types that the profiler recorded.

Called by trace.  The formulas are those of torch.utils.flop_counter, for operators that do the work themselves; what
only calls others, such as aten::linear, has 0, so sums count nothing twice.  Invariant: what is not known exactly is
UNKNOWN, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from .dtypes import BYTES, Shape, is_tensor
from .traffic import touches_nothing, traffic_of

UNKNOWN = -1

Cost = tuple[int, Shape]  # operations, and the shape of the result


def cost_of(name: str, args: Mapping[str, Any]) -> tuple[int, int]:
    """Floating-point operations, and bytes of the tensors that it reads and writes."""
    if touches_nothing(name):
        return 0, 0
    if "Input Dims" not in args:
        return UNKNOWN, UNKNOWN
    shapes, kinds, texts = args["Input Dims"], args["Input type"], args.get("Concrete Inputs", [])
    try:
        if (formula := _FORMULAS.get(name)) is None:
            return 0, traffic_of(name, shapes, kinds, texts)
        flops, result = formula(shapes, texts)
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return UNKNOWN, UNKNOWN
    return flops, _bytes(name, result, shapes, kinds)


def _bytes(name: str, result: Shape, shapes: Sequence[Shape], kinds: Sequence[str]) -> int:
    """Of the arguments and the result, which has the type of the first of them."""
    read = [(prod(shape), BYTES.get(kind)) for shape, kind in zip(shapes, kinds, strict=False) if is_tensor(shape)]
    if not read or None in (size for _, size in read):
        return UNKNOWN
    if name == "aten::embedding":  # of the table only the rows that are looked up are read
        read[0] = prod(result), read[0][1]
    return prod(result) * BYTES[kinds[0]] + sum(count * (size or 0) for count, size in read)


def _mm(shapes: Sequence[Shape], texts: Sequence[str]) -> Cost:
    (rows, inner), (_, columns) = shapes[0], shapes[1]
    return 2 * rows * inner * columns, (rows, columns)


def _addmm(shapes: Sequence[Shape], texts: Sequence[str]) -> Cost:
    return _mm(shapes[1:], texts)


def _bmm(shapes: Sequence[Shape], texts: Sequence[str]) -> Cost:
    (batch, rows, inner), (_, _, columns) = shapes[0], shapes[1]
    return 2 * batch * rows * inner * columns, (batch, rows, columns)


def _baddbmm(shapes: Sequence[Shape], texts: Sequence[str]) -> Cost:
    return _bmm(shapes[1:], texts)


def _embedding(shapes: Sequence[Shape], texts: Sequence[str]) -> Cost:
    return 0, (*shapes[1], shapes[0][1])


def _attention(shapes: Sequence[Shape], texts: Sequence[str]) -> Cost:
    """Two products for each head: of queries and keys, of that and values."""
    batch, heads, queries, size = shapes[0]
    (*_, keys, _), (*_, value_size) = shapes[1], shapes[2]
    flops = 2 * batch * heads * queries * keys * (size + value_size)
    return flops, (batch, heads, queries, value_size)


def _convolution(shapes: Sequence[Shape], texts: Sequence[str]) -> Cost:
    """Arguments: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups."""
    image, weight = shapes[0], shapes[1]
    stride, padding, dilation, extra = (_numbers(texts[place], len(image) - 2) for place in (3, 4, 5, 7))
    is_transposed, groups = texts[6] == "True", int(texts[8])
    kernel = weight[2:]
    if is_transposed:
        out = [(size - 1) * step - 2 * pad + wide * (across - 1) + more + 1 for size, step, pad, wide, across, more
               in zip(image[2:], stride, padding, dilation, kernel, extra, strict=True)]  # fmt: skip
        channels, moved = weight[1] * groups, image[2:]
    else:
        out = [(size + 2 * pad - wide * (across - 1) - 1) // step + 1 for size, step, pad, wide, across
               in zip(image[2:], stride, padding, dilation, kernel, strict=True)]  # fmt: skip
        channels, moved = weight[0], out
    return 2 * image[0] * prod(weight) * prod(moved), (image[0], channels, *out)


def _convolution_backward(shapes: Sequence[Shape], texts: Sequence[str]) -> Cost:
    """Arguments: gradient, input, weight, sizes of the bias, …, transposed, output_padding, groups, which are wanted.
    The gradients of input and weight take what the forward took, each."""
    gradient, image, weight = shapes[:3]
    wanted = [each.strip() == "True" for each in texts[10].strip("[]").split(",")]
    moved = image[2:] if texts[7] == "True" else gradient[2:]
    sizes = prod(image), prod(weight), gradient[1]
    results = sum(size for size, is_wanted in zip(sizes, wanted, strict=True) if is_wanted)
    return 2 * sum(wanted[:2]) * image[0] * prod(weight) * prod(moved), (results,)


def _attention_backward(shapes: Sequence[Shape], texts: Sequence[str]) -> Cost:
    """Five products: that of queries and keys again, and the gradients of scores, values, queries and keys."""
    batch, heads, queries, size = shapes[1]
    (*_, keys, _), (*_, value_size) = shapes[2], shapes[3]
    flops = 2 * batch * heads * queries * keys * (3 * size + 2 * value_size)
    return flops, (sum(map(prod, shapes[1:4])),)


def _numbers(text: str, count: int) -> list[int]:
    found = [int(each) for each in text.strip("[]").split(",")]
    return found * count if len(found) == 1 else found


_FORMULAS: dict[str, Callable[[Sequence[Shape], Sequence[str]], Cost]] = {
    "aten::mm": _mm,
    "aten::addmm": _addmm,
    "aten::bmm": _bmm,
    "aten::baddbmm": _baddbmm,
    "aten::embedding": _embedding,
    "aten::_convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward,
}
