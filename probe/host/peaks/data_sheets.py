"""What devices can do at most, as their vendor says: dense arithmetic, not that of sparse matrices.

Read by known.  Keys are the names that NVML and torch give to devices: they tell variants apart whose clocks or memory
differ.  Arithmetic is that of the tensor cores, accumulated in float32, where they have that type, which is what
matrix products use.  Invariant: a type that a device's sheet does not list is not there.
"""

from __future__ import annotations

from typing import NamedTuple


class Sheet(NamedTuple):
    """tflops_s: by type, 10¹² operations a second; memory_gbps: 10⁹ bytes a second; source: the vendor's document."""

    tflops_s: dict[str, float]
    memory_gbps: float
    source: str


def _sheet(source: str, memory_gbps: float, **tflops_s: float) -> Sheet:
    return Sheet(tflops_s, memory_gbps, f"NVIDIA {source}")


_H100 = {"float64": 67.0, "float32": 67.0, "tf32": 494.7, "float16": 989.4, "bfloat16": 989.4}
_H100_NVL = {"float64": 60.0, "float32": 60.0, "tf32": 417.5, "float16": 835.5, "bfloat16": 835.5}
_A100 = {"float64": 19.5, "float32": 19.5, "tf32": 156.0, "float16": 312.0, "bfloat16": 312.0}
_V100_SXM = {"float64": 7.8, "float32": 15.7, "float16": 125.0}
_V100_PCIE = {"float64": 7.0, "float32": 14.0, "float16": 112.0}
_H100_SHEET, _H200_SHEET = "H100 Tensor Core GPU data sheet", "H200 Tensor Core GPU data sheet"
_A100_SHEET, _V100_SHEET = "A100 Tensor Core GPU data sheet", "V100 Tensor Core GPU data sheet"

SHEETS: dict[str, Sheet] = {
    "NVIDIA B200": _sheet("HGX B200 data sheet", 8000.0, float64=37.0, float32=75.0, tf32=1125.0, float16=2250.0,
                          bfloat16=2250.0),
    "NVIDIA H200": _sheet(_H200_SHEET, 4800.0, **_H100),
    "NVIDIA H200 NVL": _sheet(_H200_SHEET, 4800.0, **_H100_NVL),
    "NVIDIA H100 80GB HBM3": _sheet(_H100_SHEET, 3350.0, **_H100),  # SXM
    "NVIDIA H100 NVL": _sheet(_H100_SHEET, 3900.0, **_H100_NVL),
    "NVIDIA H100 PCIe": _sheet(_H100_SHEET, 2000.0, float64=51.0, float32=51.0, tf32=378.0, float16=756.0,
                               bfloat16=756.0),
    "NVIDIA A100-SXM4-40GB": _sheet(_A100_SHEET, 1555.0, **_A100),
    "NVIDIA A100-PCIE-40GB": _sheet(_A100_SHEET, 1555.0, **_A100),
    "NVIDIA A100-SXM4-80GB": _sheet(_A100_SHEET, 2039.0, **_A100),
    "NVIDIA A100 80GB PCIe": _sheet(_A100_SHEET, 1935.0, **_A100),
    "NVIDIA A10": _sheet("A10 Tensor Core GPU data sheet", 600.0, float32=31.2, tf32=62.5, float16=125.0,
                         bfloat16=125.0),
    "NVIDIA L40S": _sheet("L40S data sheet", 864.0, float32=91.6, tf32=183.0, float16=362.05, bfloat16=362.05),
    "NVIDIA L4": _sheet("L4 Tensor Core GPU data sheet", 300.0, float32=30.3, tf32=60.0, float16=121.0, bfloat16=121.0),
    "Tesla V100-SXM2-16GB": _sheet(_V100_SHEET, 900.0, **_V100_SXM),
    "Tesla V100-SXM2-32GB": _sheet(_V100_SHEET, 900.0, **_V100_SXM),
    "Tesla V100-PCIE-16GB": _sheet(_V100_SHEET, 900.0, **_V100_PCIE),
    "Tesla V100-PCIE-32GB": _sheet(_V100_SHEET, 900.0, **_V100_PCIE),
    "Tesla V100S-PCIE-32GB": _sheet(_V100_SHEET, 1134.0, float64=8.2, float32=16.4, float16=130.0),
    "Tesla T4": _sheet("Turing GPU architecture whitepaper", 320.0, float32=8.1, float16=65.0),
    "NVIDIA GeForce RTX 4090": _sheet("Ada GPU architecture whitepaper", 1008.0, float32=82.6, tf32=82.6, float16=165.2,
                                      bfloat16=165.2),
    "NVIDIA GeForce RTX 3090": _sheet("Ampere GA102 GPU architecture whitepaper", 936.0, float32=35.6, tf32=35.6,
                                      float16=71.0, bfloat16=71.0),
}  # fmt: skip
