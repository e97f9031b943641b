# SPDX-License-Identifier: Apache-2.0
"""Scheduled kernels whose memory accesses can be counted by hand."""

from tvm.script import tirx as T

N = 64  # side of the matrices
GROUP = 64


def copy():
    """Return ``B = A``."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((N, N), "float32"), B: T.Buffer((N, N), "float32")):
        for g in T.thread_binding(N * N // GROUP, thread="blockIdx.x"):
            for t in T.thread_binding(GROUP, thread="threadIdx.x"):
                with T.sblock("B"):
                    i = T.axis.spatial(N, (g * GROUP + t) // N)
                    j = T.axis.spatial(N, (g * GROUP + t) % N)
                    B[i, j] = A[i, j]

    return kernel


def transposed():
    """Return ``B = A.T``."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((N, N), "float32"), B: T.Buffer((N, N), "float32")):
        for g in T.thread_binding(N * N // GROUP, thread="blockIdx.x"):
            for t in T.thread_binding(GROUP, thread="threadIdx.x"):
                with T.sblock("B"):
                    i = T.axis.spatial(N, (g * GROUP + t) // N)
                    j = T.axis.spatial(N, (g * GROUP + t) % N)
                    B[i, j] = A[j, i]

    return kernel


def vector_copy(scope="global", dtype="float32"):
    """Return ``B = A``, four elements at a time, from buffers or textures."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((N, N // 4, 4), dtype, scope=scope), B: T.Buffer((N, N // 4, 4), dtype, scope=scope)):
        for g in T.thread_binding(N * N // 4 // GROUP, thread="blockIdx.x"):
            for t in T.thread_binding(GROUP, thread="threadIdx.x"):
                for v in T.vectorized(4):
                    with T.sblock("B"):
                        i = T.axis.spatial(N, (g * GROUP + t) // (N // 4))
                        j = T.axis.spatial(N // 4, (g * GROUP + t) % (N // 4))
                        lane = T.axis.spatial(4, v)
                        B[i, j, lane] = A[i, j, lane]

    return kernel


def vector_erf():
    """Return ``B = erf(A)``, four elements at a time, which TVM does not vectorize."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((N, N), "float32"), B: T.Buffer((N, N), "float32")):
        for g in T.thread_binding(N * N // 4 // GROUP, thread="blockIdx.x"):
            for t in T.thread_binding(GROUP, thread="threadIdx.x"):
                for v in T.vectorized(4):
                    with T.sblock("B"):
                        i = T.axis.spatial(N, (g * GROUP + t) // (N // 4))
                        j = T.axis.spatial(N, (g * GROUP + t) % (N // 4) * 4 + v)
                        B[i, j] = T.erf(A[i, j])

    return kernel


def stencil():
    """Return ``B[i, j] = A[i, j] + A[i, j + 1] + A[i, j + 2]``, 0 behind the edge: a guarded load."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((N, N), "float32"), B: T.Buffer((N, N), "float32")):
        for g in T.thread_binding(N * N // GROUP, thread="blockIdx.x"):
            for t in T.thread_binding(GROUP, thread="threadIdx.x"):
                for k in range(3):
                    with T.sblock("B"):
                        i = T.axis.spatial(N, (g * GROUP + t) // N)
                        j = T.axis.spatial(N, (g * GROUP + t) % N)
                        vk = T.axis.reduce(3, k)
                        with T.init():
                            B[i, j] = T.float32(0)
                        B[i, j] = B[i, j] + T.if_then_else(j + vk < N, A[i, j + vk], T.float32(0))

    return kernel


def matmul(tile: int):
    """Return ``C = A @ B``, an element for each thread; thread blocks of `tile` rows."""
    across = GROUP // tile

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((N, N), "float32"), B: T.Buffer((N, N), "float32"), C: T.Buffer((N, N), "float32")):
        for g in T.thread_binding(N * N // GROUP, thread="blockIdx.x"):
            for t in T.thread_binding(GROUP, thread="threadIdx.x"):
                acc = T.sblock_alloc_buffer((1,), "float32", scope="local")
                for k in range(N):
                    with T.sblock("acc"):
                        i = T.axis.spatial(N, g // (N // across) * tile + t // across)
                        j = T.axis.spatial(N, g % (N // across) * across + t % across)
                        vk = T.axis.reduce(N, k)
                        with T.init():
                            acc[0] = T.float32(0)
                        acc[0] = acc[0] + A[i, vk] * B[vk, j]
                with T.sblock("C"):
                    i = T.axis.spatial(N, g // (N // across) * tile + t // across)
                    j = T.axis.spatial(N, g % (N // across) * across + t % across)
                    C[i, j] = acc[0]

    return kernel


def virtual_matmul(virtual: int):
    """Return ``C = A @ B``, `virtual` rows for each thread, which all read the same elements of B."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((N, N), "float32"), B: T.Buffer((N, N), "float32"), C: T.Buffer((N, N), "float32")):
        for g in T.thread_binding(N // virtual, thread="blockIdx.x"):
            for r in T.thread_binding(virtual, thread="vthread.y"):
                for t in T.thread_binding(N, thread="threadIdx.x"):
                    acc = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    for k in range(N):
                        with T.sblock("acc"):
                            i = T.axis.spatial(N, g * virtual + r)
                            j, vk = T.axis.remap("SR", [t, k])
                            with T.init():
                                acc[0] = T.float32(0)
                            acc[0] = acc[0] + A[i, vk] * B[vk, j]
                    with T.sblock("C"):
                        i = T.axis.spatial(N, g * virtual + r)
                        j = T.axis.spatial(N, t)
                        C[i, j] = acc[0]

    return kernel
