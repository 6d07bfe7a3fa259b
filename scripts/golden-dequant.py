#!/usr/bin/env python3
"""Writes tests/golden/dequant: random blocks of every GGUF type that we read,
and what the PyPI package `gguf` (0.19.0) makes of them.

    pip install gguf==0.19.0 && scripts/golden-dequant.py

TYPE.blocks holds the blocks as a file would, TYPE.f32 the elements (little-endian)."""
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

# Where the f16 numbers of a block are.
HALVES = {
    Type.F16: [0],
    Type.BF16: [],
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
}
ELEMENTS = 1024

random = np.random.default_rng(20261130)
out = Path(__file__).parent.parent / "tests" / "golden" / "dequant"
out.mkdir(parents=True, exist_ok=True)
for kind, halves in HALVES.items():
    size, length = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (ELEMENTS // size, length), dtype=np.uint8)
    for at in halves:
        # Any finite number, subnormal ones and both signs included.
        number = random.integers(0, 0x7C00, len(blocks)) | random.integers(0, 2, len(blocks)) << 15
        blocks[:, at : at + 2] = number.astype("<u2").view(np.uint8).reshape(-1, 2)
    if kind == Type.BF16:
        number = random.integers(0, 0x7F80, len(blocks)) | random.integers(0, 2, len(blocks)) << 15
        blocks = number.astype("<u2").view(np.uint8).reshape(-1, 2)
    values = dequantize(blocks.reshape(1, -1), kind).astype("<f4")
    (out / f"{kind.name}.blocks").write_bytes(blocks.tobytes())
    (out / f"{kind.name}.f32").write_bytes(values.tobytes())
