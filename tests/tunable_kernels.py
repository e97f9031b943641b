# SPDX-License-Identifier: Apache-2.0
"""One small kernel for each schedule rule with decisions, with extents that are no multiples of tiles."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import te, tirx, topi

from attention_expressions import attention
from helpers import constant, module, op
from smartmem_tvm.deploy.build import optimize
from smartmem_tvm.ir.texels import is_texture
from smartmem_tvm.target import device_of
from smartmem_tvm.tune.tasks import Task, tasks_of
from smartmem_tvm.tune.tunable_kernel import CONSTANTS


def matmul(rows=37, depth=24, columns=45):
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((depth, columns), name="b")
    k = te.reduce_axis((0, depth), "k")
    total = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="total")
    return [a, b], topi.nn.relu(total), lambda a, b: np.maximum(a @ b, 0)


def batched():
    a, b = te.placeholder((3, 19, 16), name="a"), te.placeholder((3, 21, 16), name="b")
    k = te.reduce_axis((0, 16), "k")
    output = te.compute((3, 19, 21), lambda n, i, j: te.sum(a[n, i, k] * b[n, j, k], k))
    return [a, b], output, lambda a, b: a @ b.transpose(0, 2, 1)


def windows(x, w, groups):
    """Sums over 3x3 windows without padding."""
    seen = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    n, c, y, z = seen.shape[:4]
    seen, w = seen.reshape(n, groups, c // groups, y, z, 3, 3), w.reshape(groups, -1, *w.shape[1:])
    return np.einsum("ngiyzpq,goipq->ngoyz", seen, w).reshape(n, -1, y, z)


def convolution():
    x, w = te.placeholder((2, 5, 11, 13), name="x"), te.placeholder((20, 5, 3, 3), name="w")
    return [x, w], topi.nn.conv2d_nchw(x, w, 1, 0, 1), lambda x, w: windows(x, w, 1)


def grouped():
    x, w = te.placeholder((1, 6, 17, 13), name="x"), te.placeholder((15, 2, 3, 3), name="w")
    return (
        [x, w],
        topi.nn.group_conv2d_nchw(x, w, 2, 0, 1, 3),
        lambda x, w: windows(x, w, 3)[:, :, ::2, ::2],
    )


def depthwise():
    x, w = te.placeholder((1, 6, 14, 18), name="x"), te.placeholder((6, 1, 3, 3), name="w")
    return [x, w], topi.nn.group_conv2d_nchw(x, w, 1, 0, 1, 6), lambda x, w: windows(x, w, 6)


def layer_norm():
    x = te.placeholder((33, 50), name="x")
    k = te.reduce_axis((0, 50), "k")
    mean = te.compute((33,), lambda i: te.sum(x[i, k], k), name="mean")
    rest = te.compute((33, 50), lambda i, j: x[i, j] - mean[i] * tirx.const(1 / 50, "float32"), name="rest")
    return [x], rest, lambda x: x - x.mean(1, keepdims=True)


def channel_norm():
    """Rows lie side by side in memory."""
    x = te.placeholder((30, 41), name="x")
    k = te.reduce_axis((0, 30), "k")
    most = te.compute((41,), lambda j: te.max(x[k, j], k), name="most")
    return [x], te.compute((30, 41), lambda i, j: x[i, j] - most[j], name="rest"), lambda x: x - x.max(0)


def softmax_attention():
    return attention(3, 21, 19, 12, 10, True)


def elementwise():
    x, y = te.placeholder((45, 52), name="x"), te.placeholder((52,), name="y")
    return [x, y], te.compute((45, 52), lambda i, j: x[i, j] * y[j]), lambda x, y: x * y


def transpose():
    x = te.placeholder((45, 38), name="x")
    return [x], te.compute((38, 45), lambda i, j: x[j, i]), lambda x: x.T


@dataclass(frozen=True)
class Case:
    """A kernel, its kinds of decisions on a CPU and on a GPU, and its constant arguments.

    `cuda` are the kinds of decisions there, where they are others than those of OpenCL.
    """

    build: Callable
    cpu: str
    gpu: str
    constants: tuple[int, ...] = ()
    cuda: str = ""

    def kinds(self, target: str) -> list[str]:
        found = self.cpu if target == "llvm" else self.gpu
        return (self.cuda or found if target == "cuda" else found).split()

    def func(self) -> tirx.PrimFunc:
        inputs, output, _ = self.build()
        func = te.create_prim_func([*inputs, output])
        return func.with_attr(CONSTANTS, list(self.constants)) if self.constants else func

    def arrays(self) -> list[np.ndarray]:
        generator = np.random.default_rng(0)
        shapes = [[int(d) for d in tensor.shape] for tensor in self.build()[0]]
        return [generator.standard_normal(shape).astype("float32") for shape in shapes]


CASES = {
    "matmul": Case(matmul, "matmul", "gpu_matmul"),
    "long matmul": Case(lambda: matmul(9, 520, 12), "matmul", "gpu_matmul"),
    "matmul with a weight": Case(matmul, "matmul", "gpu_matmul", (1,)),
    "vector with a weight": Case(lambda: matmul(1, 96, 10), "matmul", "gpu_rows", (1,), "gpu_few_rows"),
    "batched matmul": Case(batched, "matmul", "gpu_matmul"),
    "convolution": Case(convolution, "slide", "gpu_window_product"),
    "grouped": Case(grouped, "slide", "gpu_window_slide"),
    "depthwise": Case(depthwise, "depthwise", "gpu_window_slide"),
    "layer norm": Case(layer_norm, "rows", "gpu_rows"),
    "channel norm": Case(channel_norm, "rows", "gpu_rows"),
    "attention": Case(softmax_attention, "row_chain panel panel#1", "gpu_row_chain"),
    "element-wise": Case(elementwise, "elementwise", "gpu_elementwise"),
    "transpose": Case(transpose, "transpose", "gpu_elementwise"),
}


def check(case: Case, func: tirx.PrimFunc, target: tvm.target.Target, packed: list[np.ndarray] | None = None) -> None:
    """Build a scheduled kernel, run it, compare it with numpy.

    Parameters
    ----------
    packed : list of array, optional
        Its inputs, where they are not those of the case.
    """
    output, reference = case.build()[1:]
    device = device_of(target)
    inputs = [tvm.runtime.tensor(array, device) for array in packed or case.arrays()]
    result = tvm.runtime.tensor(
        np.full([int(d) for d in output.shape], 7, "float32"), device
    )  # what is not written shows
    tvm.compile(tvm.IRModule({"main": func}), target)["main"](*inputs, result)
    want = np.asarray(reference(*case.arrays())).reshape(result.shape)
    np.testing.assert_allclose(result.numpy(), want, rtol=2e-5, atol=2e-5 * max(1, np.abs(want).max()))


def two_matmuls() -> tvm.IRModule:
    """Two matmuls with weights; the tensor between them and the second weight go to textures where there are any."""
    first, second = constant(24, 64), constant(64, 48)
    return module(lambda x: op.matmul(op.nn.relu(op.matmul(x, first)), second), (36, 24))


def textured_tasks(target: tvm.target.Target) -> list[Task]:
    """The kernels of `two_matmuls` with textures: one writes a texture, the other reads it."""
    with target:
        found = tasks_of(optimize(two_matmuls()), target)
    reads = [is_texture(task.mod["main"].params[-1]) for task in found]
    assert sorted(reads) == [False, True] and all(any(map(is_texture, task.mod["main"].params)) for task in found)
    return found if reads[0] else found[::-1]
