# SPDX-License-Identifier: Apache-2.0
"""Tensors in different memory: aligned, misaligned, or of another library."""

import numpy as np

RANDOM = np.random.default_rng(7)


def aligned(shape, dtype="float32", off=0) -> np.ndarray:
    """Return an array that begins `off` bytes after a multiple of 64."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 128, "uint8")
    start = -memory.ctypes.data % 64 + off
    return memory[start : start + size].view(dtype).reshape(shape)


def floats(*shape) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


class Foreign:
    """A tensor of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
