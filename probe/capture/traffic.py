"""Bytes that an operator reads and writes which maps, moves or reduces elements, and which operators touch none.

Called by cost.  torch.utils.flop_counter counts no arithmetic of these.  A tensor counts once for each operator that
reads or writes it, whether it comes from memory or from a cache.  Invariant: no entry, no number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import prod

from .dtypes import BYTES, Shape, is_tensor

Tensors = list[tuple[Shape, int]]  # dimensions, and bytes of an element


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


# All arguments are read, and a result as large as they are together (by broadcasting) is written; also in place.
_MAPS = _aten(
    "abs add addcdiv addcmul clamp clamp_min clamp_max cos div elu elu_backward erf exp gelu gelu_backward leaky_relu "
    "leaky_relu_backward lerp log masked_fill maximum minimum mul native_dropout_backward neg pow reciprocal relu "
    "rsqrt rsub sigmoid sigmoid_backward silu silu_backward sin sqrt sub tanh tanh_backward threshold_backward where "
    "_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data"
)
_FLOATS = ("float", "double", "c10::Half", "c10::BFloat16")
_REDUCTIONS = _aten("amax amin mean sum")
_VIEWS = _aten(  # and allocations
    "alias as_strided as_strided_ chunk detach detach_ empty empty_like empty_strided expand lift_fresh narrow permute "
    "resize_ resolve_conj resolve_neg select set_ slice split split_with_sizes squeeze squeeze_ t transpose unbind "
    "unsafe_split unsqueeze unsqueeze_ view _reshape_alias _unsafe_view"
)
_COMPOSED = _aten(  # of others, which count
    "batch_norm clone contiguous conv1d conv2d conv3d convolution cross_entropy_loss dropout einsum embedding_backward "
    "expand_as flatten item layer_norm linear log_softmax matmul nll_loss nll_loss_nd ones ones_like reshape "
    "rms_norm scaled_dot_product_attention select_backward slice_backward softmax square to type_as unflatten zeros "
    "zeros_like _batch_norm_impl_index _safe_softmax _scaled_dot_product_attention_math _to_copy"
)
_NODE = re.compile(r"autograd::engine::|torch::autograd::|detach$|\w+Backward\d+$")  # with a number: not the job's own


def touches_nothing(name: str) -> bool:
    """Whether it makes views, allocates or only calls others, as the nodes of autograd do."""
    return name in _VIEWS or name in _COMPOSED or _NODE.match(name) is not None


def traffic_of(name: str, shapes: Sequence[Shape], kinds: Sequence[str], texts: Sequence[str]) -> int:
    """Bytes.  Raises LookupError for an operator or a type that is not known, ValueError for unexpected arguments."""
    pairs = [(shape, kind) for shape, kind in zip(shapes, kinds, strict=False) if is_tensor(shape)]
    tensors = [(shape, BYTES[kind]) for shape, kind in pairs]
    if name in _MAPS or name.removesuffix("_") in _MAPS:  # those of integers alone may have floats for a result
        return _total(tensors) + _broadcast(tensors) * max(BYTES[kind] for _, kind in pairs if kind in _FLOATS)
    if name in _REDUCTIONS and kinds[0] in _FLOATS:  # those of integers have a wider result
        return _total(tensors[:1]) + _reduced(tensors[0][0], texts) * tensors[0][1]
    return _OTHERS[name](tensors, texts)


def _total(tensors: Tensors) -> int:
    return sum(prod(shape) * size for shape, size in tensors)


def _broadcast(tensors: Tensors) -> int:
    """Elements of the result."""
    return prod(max(sizes) for sizes in zip_longest(*(shape[::-1] for shape, _ in tensors), fillvalue=1))


def _reduced(shape: Shape, texts: Sequence[str]) -> int:
    """Elements that are left.  Arguments: input, which dimensions (none: all), whether to keep them, type."""
    if any(texts[3:4] if texts[1].startswith("[") else texts[1:2]):
        raise LookupError  # a result of another type
    dims = {int(each) % len(shape) for each in texts[1].strip("[]").split(",") if each}
    return prod(size for place, size in enumerate(shape) if place not in dims) if dims else 1


def _copy(tensors: Tensors, texts: Sequence[str]) -> int:
    """The first is written, the second read; an argument without dimensions does not count."""
    return _total(tensors[:2])


def _fill(tensors: Tensors, texts: Sequence[str]) -> int:
    return _total(tensors[:1])


def _layer_norm(tensors: Tensors, texts: Sequence[str]) -> int:
    """Arguments: input, normalized dimensions, weight, bias.  It also writes mean and deviation of each row."""
    return _total([*tensors, tensors[0]]) + 2 * _statistic(tensors, texts)


def _rms_norm(tensors: Tensors, texts: Sequence[str]) -> int:
    """Arguments: input, normalized dimensions, weight.  It also writes the deviation of each row."""
    return _total([*tensors, tensors[0]]) + _statistic(tensors, texts)


def _statistic(tensors: Tensors, texts: Sequence[str]) -> int:
    """Bytes of one number for each row, in float32 at least."""
    shape, size = tensors[0]
    normalized = [int(each) for each in texts[1].strip("[]").split(",")]
    return prod(shape[: len(shape) - len(normalized)]) * max(4, size)


def _layer_norm_backward(tensors: Tensors, texts: Sequence[str]) -> int:
    """Arguments: gradient, input, dimensions, mean, deviation, weight, bias (not read), which gradients are wanted."""
    _, data, _, _, weight, bias = tensors
    return _total(tensors[:5]) + _total(_wanted(texts[7], (data, weight, bias)))


def _batch_norm(tensors: Tensors, texts: Sequence[str]) -> int:
    """Arguments: input, weight, bias, running mean and variance, whether it trains: then it writes these, and those of
    the batch.  What cuDNN may note for its backward is not known, and does not count."""
    data, _, _, mean, variance = tensors
    return _total([*tensors, data]) + (2 * _total([mean, variance]) if texts[5] == "True" else 0)


def _batch_norm_backward(tensors: Tensors, texts: Sequence[str]) -> int:
    """Of a training.  Arguments: gradient, input, weight, running mean and variance, those of the batch, whether it
    trains, …, which gradients are wanted."""
    gradient, data, weight, _, _, mean, variance = tensors
    if texts[7] != "True":
        raise LookupError
    return _total([gradient, data, weight, mean, variance]) + _total(_wanted(texts[9], (data, weight, weight)))


def _wanted(text: str, gradients: Sequence[tuple[Shape, int]]) -> Tensors:
    """Those at whose place it says True."""
    flags = [each.strip() == "True" for each in text.strip("[]").split(",")]
    return [each for each, is_wanted in zip(gradients, flags, strict=True) if is_wanted]


def _dropout(tensors: Tensors, texts: Sequence[str]) -> int:
    """It also writes a mask of bytes."""
    return 2 * _total(tensors[:1]) + prod(tensors[0][0])


def _embedding_backward(tensors: Tensors, texts: Sequence[str]) -> int:
    """Arguments: gradient, indices, rows of the table.  The whole table's gradient is written."""
    (*_, width), size = tensors[0]
    return _total(tensors[:2]) + int(texts[2]) * width * size


_OTHERS: dict[str, Callable[[Tensors, Sequence[str]], int]] = {
    "aten::_fused_rms_norm": _rms_norm,
    "aten::bernoulli_": _fill,
    "aten::copy_": _copy,
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::fill_": _fill,
    "aten::native_batch_norm": _batch_norm,
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::native_dropout": _dropout,
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::zero_": _fill,
}
