"""FLOPs and bytes of operators, as computed by hand from their shapes."""

from __future__ import annotations

from typing import Any

import pytest

from probe.capture.cost import UNKNOWN, cost_of

HALF, FLOAT, LONG = "c10::Half", "float", "long int"
CONVOLUTION = ["", "", "", "[2]", "[1]", "[1]", "False", "[0]", "1"]


def args(shapes: list[Any], kinds: list[str], texts: list[str] | None = None) -> dict[str, Any]:
    rest = len(texts or []) - len(shapes)
    return {
        "Input Dims": shapes + [[]] * rest,
        "Input type": kinds + ["Scalar"] * rest,
        "Concrete Inputs": texts or [""] * len(shapes),
    }


@pytest.mark.parametrize(
    ("name", "given", "flops", "size"),
    [
        # a Linear of 32 to 48 features, batch 8
        ("aten::addmm", args([[48], [8, 32], [32, 48]], [FLOAT] * 3), 2 * 8 * 32 * 48, 4 * (48 + 256 + 1536 + 384)),
        ("aten::mm", args([[4, 5], [5, 7]], [HALF] * 2), 2 * 4 * 5 * 7, 2 * (20 + 35 + 28)),
        ("aten::bmm", args([[3, 4, 5], [3, 5, 6]], [FLOAT] * 2), 3 * 2 * 4 * 5 * 6, 4 * (60 + 90 + 72)),
        # a Conv1d of 4 to 8 channels, kernel 3, stride 2, padding 1, over 2 rows of 17: 9 places each
        ("aten::_convolution", args([[2, 4, 17], [8, 4, 3], [8]], [FLOAT] * 3, CONVOLUTION), 2 * (2 * 9 * 8 * 4 * 3),
         4 * (136 + 96 + 8 + 2 * 8 * 9)),
        # heads of size 16, 10 queries and 12 keys: two products
        ("aten::_scaled_dot_product_flash_attention",
         args([[2, 4, 10, 16], [2, 4, 12, 16], [2, 4, 12, 16]], [HALF] * 3),
         2 * (2 * 2 * 4 * 10 * 12 * 16), 2 * (2 * 1280 + 2 * 1536)),
        # the bias of 7 is added to each of 3 rows
        ("aten::add_", args([[3, 7], [7]], [FLOAT] * 2), 0, 4 * (21 + 7 + 21)),
        ("aten::mul", args([[2, 1, 5], [4, 1]], [HALF, FLOAT]), 0, 2 * 10 + 4 * 4 + 4 * 2 * 4 * 5),
        ("aten::mul", args([[6], [6]], [LONG, FLOAT]), 0, 8 * 6 + 4 * 6 + 4 * 6),
        ("aten::copy_", args([[6], [6]], [HALF, FLOAT]), 0, 2 * 6 + 4 * 6),
        ("aten::sum", args([[6, 4, 5], []], [FLOAT], ["", "[0, -1]", "True", ""]), 0, 4 * (120 + 4)),
        ("aten::sum", args([[6, 4], []], [FLOAT], ["", ""]), 0, 4 * (24 + 1)),
        # mean and deviation of each of 6 rows
        ("aten::native_layer_norm", args([[2, 3, 8], [], [8], [8]], [HALF, "ScalarList", HALF, HALF],
                                         ["", "[8]", "", "", "1e-5"]), 0, 2 * (48 + 8 + 8 + 48) + 4 * 12),
        ("aten::native_layer_norm", args([[2, 3, 0], [], [0], [0]], [FLOAT, "ScalarList", FLOAT, FLOAT],
                                         ["", "[0]", "", "", "1e-5"]), 0, 2 * 4 * 6),  # rows of nothing
        # gradients of the input, 8 weights and 8 biases; the biases are not read
        ("aten::native_layer_norm_backward",
         args([[6, 8], [6, 8], [], [6, 1], [6, 1], [8], [8]], [FLOAT, FLOAT, "ScalarList", *[FLOAT] * 4],
              ["", "", "[8]", "", "", "", "", "[True, True, True]"]), 0, 4 * (48 + 48 + 6 + 6 + 8 + 48 + 8 + 8)),
        ("aten::_fused_rms_norm", args([[2, 3, 8], [], [8]], [HALF, "ScalarList", HALF], ["", "[8]", "", ""]), 0,
         2 * (48 + 8 + 48) + 4 * 6),
        # running mean and variance are read and written, those of the batch written
        ("aten::native_batch_norm", args([[2, 4, 8, 8], *[[4]] * 4], [FLOAT] * 5, [*[""] * 5, "True"]), 0,
         4 * (512 + 16 + 512 + 8 + 8)),
        ("aten::native_batch_norm", args([[2, 4, 8, 8], *[[4]] * 4], [FLOAT] * 5, [*[""] * 5, "False"]), 0,
         4 * (512 + 16 + 512)),
        ("aten::native_batch_norm_backward",
         args([*[[2, 4, 8, 8]] * 2, *[[4]] * 5], [FLOAT] * 7, [*[""] * 7, "True", "1e-5", "[True, True, False]"]),
         0, 4 * (512 + 512 + 4 + 4 + 4 + 512 + 4)),
        ("aten::native_dropout", args([[6, 8]], [FLOAT]), 0, 4 * 96 + 48),
        ("aten::embedding_dense_backward", args([[4, 5, 16], [4, 5]], [FLOAT, LONG], ["", "", "100", "-1", "False"]),
         0, 4 * 320 + 8 * 20 + 4 * 1600),
        ("aten::linear", args([[8, 32], [48, 32]], [FLOAT] * 2), 0, 0),  # its operators have them
        ("aten::view", args([[8, 32]], [FLOAT]), 0, 0),
        ("autograd::engine::evaluate_function: AddmmBackward0", {}, 0, 0),
        ("AddmmBackward0", args([[8, 32]], [FLOAT]), 0, 0),
        ("detach", args([[8, 32]], [FLOAT]), 0, 0),
        # 20 of 100 rows are read
        ("aten::embedding", args([[100, 16], [4, 5]], [FLOAT, LONG]), 0, 4 * 320 + 8 * 20 + 4 * 320),
    ],
)  # fmt: skip
def test_flops_and_bytes_are_those_by_hand(name: str, given: dict[str, Any], flops: int, size: int) -> None:
    assert cost_of(name, given) == (flops, size)


def test_a_backward_of_a_convolution_takes_twice_the_forward_if_both_gradients_are_wanted() -> None:
    texts = ["", "", "", "[8]", "[2]", "[1]", "[1]", "False", "[0]", "1", "[True, True, False]"]
    given = args([[2, 8, 9], [2, 4, 17], [8, 4, 3]], [FLOAT] * 3, texts)
    assert cost_of("aten::convolution_backward", given) == (2 * 2 * 1728, 4 * (144 + 136 + 96 + 136 + 96))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("aten::mm", {}),  # without --shapes
        ("aten::_foreach_add_", args([[[8], [4]], []], ["TensorList", "Scalar"])),
        ("MyFunctionBackward", args([[8]], [FLOAT])),  # the job's own
        ("aten::sum", args([[6, 4], []], [HALF], ["", "6"])),  # of another type
        ("aten::sum", args([[6, 4], []], ["bool"], ["", ""])),
        ("aten::div", args([[6, 4], [4]], [LONG, LONG])),
        ("aten::mm", args([[4], [5, 7]], [FLOAT] * 2)),
        ("aten::_convolution", args([[2, 4, 17], [8, 4, 3], [8]], [FLOAT] * 3, ["?"] * 9)),
        ("aten::_convolution", args([[2, 4, 17], [8, 4, 3], [8]], [FLOAT] * 3, ["", "", "", "[0]", *CONVOLUTION[4:]])),
        ("aten::native_layer_norm", args([[6, 8], [], [8], [8]], [FLOAT, "ScalarList", FLOAT, FLOAT])),
    ],
)
def test_what_is_not_known_is_unknown(name: str, given: dict[str, Any]) -> None:
    assert cost_of(name, given) == (UNKNOWN, UNKNOWN)


def test_an_unknown_type_leaves_the_bytes_unknown() -> None:
    assert cost_of("aten::mm", args([[4, 5], [5, 7]], ["c10::Float4"] * 2)) == (280, UNKNOWN)
