# SPDX-License-Identifier: Apache-2.0
"""OpenCL in another process, over TVM's RPC: the server is TVM's own, which knows nothing of this package."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, rpc
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import _smartmem_opencl
import smartmem_tvm
from helpers import constant, module
from opencl_package import environment
from smartmem_tvm.deploy.export import save
from smartmem_tvm.deploy.weights import Machine, map_weights
from texture_modules import TARGET as TEXTURES

TARGET = tvm.target.Target({"kind": "opencl"}, host={"kind": "llvm"})
SIZE = 256
START_SECONDS, CONNECT_SECONDS = 120, 30


@I.ir_module(s_tir=True)
class Kernels:
    @T.prim_func(s_tir=True)
    def triple(a: T.Buffer((256,), "float32"), b: T.Buffer((256,), "float32")):
        for i in T.thread_binding(4, thread="blockIdx.x"):
            for j in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("b"):
                    v = T.axis.spatial(256, i * 64 + j)
                    b[v] = a[v] * T.float32(3)


@I.ir_module(s_tir=True)
class Broken:
    @T.prim_func(s_tir=True)
    def unknown(a: T.Buffer((256,), "float32"), b: T.Buffer((256,), "float32")):
        for i in T.thread_binding(4, thread="blockIdx.x"):
            for j in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("b"):
                    v = T.axis.spatial(256, i * 64 + j)
                    b[v] = T.call_pure_extern("float32", "no_such_function", a[v])


@I.ir_module(s_tir=True)
class Network:
    @R.function
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 8), "float32")) -> R.Tensor((8, 8), "float32"):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.nn.relu(y)
            R.output(z)
        return z


@contextmanager
def serving(folder: Path, *options: str):
    """The port of a server."""
    command = [sys.executable, "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", *options]
    # A search that begins anywhere: the workers of a test run start their servers at the same time.
    first = 20000 + os.getpid() % 20000
    command += ["--port", str(first), "--port-end", str(first + 100)]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # A process group of its own, because the server leaves its worker behind when it is ended.
    with subprocess.Popen(command, **output, start_new_session=True, env=environment(folder)) as server:
        try:
            yield port_of(server)
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def port_of(server: subprocess.Popen) -> int:
    """What a server says that it has bound to; goes on reading, or the server would wait for a reader."""
    printed, found, known = [], [], threading.Event()

    def read():
        for line in server.stdout:
            printed.append(line)
            if match := re.search(r"bind to 127\.0\.0\.1:(\d+)", line):
                found.append(int(match[1]))
                known.set()
        known.set()

    threading.Thread(target=read, daemon=True).start()
    known.wait(START_SECONDS)
    assert found, f"the RPC server did not start:\n{''.join(printed)}"
    return found[0]


def connect(port: int):
    """A session; the server says what it has bound to a moment before it listens."""
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return rpc.connect("127.0.0.1", port)
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("installed")) as port:
        yield connect(port)


@pytest.fixture(scope="module")
def device(remote):
    device = remote.cl()
    assert device.exist, tvm.get_global_func("smartmem.opencl.problem")()
    return device


def upload(remote, module, path: Path):
    """Compile, export, send and load a module."""
    tvm.compile(module, target=TARGET).export_library(str(path))
    remote.upload(str(path))
    return remote.load_module(path.name)


@pytest.fixture(scope="module")
def kernels(remote, tmp_path_factory):
    return upload(remote, Kernels, tmp_path_factory.mktemp("rpc") / "kernels.so")


def numbers(*shape, dtype="float32"):
    return np.random.default_rng(7).uniform(-50, 50, shape).astype(dtype)


def test_the_device_is_the_servers(device):
    assert device.device_name == tvm.opencl(0).device_name
    assert device.max_threads_per_block == tvm.opencl(0).max_threads_per_block


def test_a_kernel_sent_there_computes_the_same(device, kernels):
    a = numbers(SIZE)
    there, result = tvm.runtime.tensor(a, device), tvm.runtime.empty((SIZE,), "float32", device)
    kernels["triple"](there, result)
    np.testing.assert_array_equal(result.numpy(), a * np.float32(3))


def test_a_kernel_is_timed_there(device, kernels):
    a, b = (tvm.runtime.tensor(numbers(SIZE), device) for _ in range(2))
    result = kernels.time_evaluator("triple", device, number=5, repeat=2)(a, b)
    assert len(result.results) == 2 and 0 < min(result.results) < 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint32"])
def test_a_texture_there_keeps_every_number(device, dtype):
    values = numbers(3, 5, 4, dtype=dtype)
    texture = tvm.runtime.empty(values.shape, dtype, device, mem_scope="global.texture")
    texture.copyfrom(values)
    np.testing.assert_array_equal(texture.numpy(), values)


def test_a_kernel_that_does_not_build_there_says_why_here(remote, device, tmp_path):
    broken = upload(remote, Broken, tmp_path / "broken.so")
    a, b = (tvm.runtime.tensor(numbers(SIZE), device) for _ in range(2))
    with pytest.raises(Exception, match="no_such_function") as error:
        broken["unknown"](a, b)
    assert "unknown_kernel" in str(error.value)
    # The session is none the worse for it.
    np.testing.assert_array_equal(a.numpy(), numbers(SIZE))


def test_a_virtual_machine_there_gives_the_local_result(remote, device, tmp_path):
    x, w = numbers(8, 16), numbers(16, 8)
    executable = tvm.compile(Network, target=TARGET)
    here = tvm.opencl(0)
    local = relax.VirtualMachine(executable, here)["main"](*(tvm.runtime.tensor(each, here) for each in (x, w)))
    executable.export_library(str(tmp_path / "network.so"))
    remote.upload(str(tmp_path / "network.so"))
    machine = relax.VirtualMachine(remote.load_module("network.so"), device)
    distant = machine["main"](*(tvm.runtime.tensor(each, device) for each in (x, w)))
    np.testing.assert_array_equal(distant.numpy(), local.numpy())
    np.testing.assert_allclose(local.numpy(), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-3)


def test_weights_of_a_folder_go_into_textures_there(remote, device, tmp_path):
    mod = module(lambda x: relax.op.nn.gelu(relax.op.matmul(x, constant(200, 301))), (5, 200))
    compiled = smartmem_tvm.compile(mod, TEXTURES)
    facts = {"inputs": [{"name": "x0", "shape": [5, 200], "dtype": "float32"}], "outputs": ["y"]}
    manifest = save(compiled, tmp_path / "out", facts, {})
    assert [each["scope"] for each in manifest["weights"]] == ["global.texture"]
    remote.upload(str(tmp_path / "out" / manifest["library"]))
    weights = map_weights(tmp_path / "out" / "weights.bin", manifest["weights"])
    machine = Machine(remote.load_module(manifest["library"]), weights, device, textures=True)
    x = numbers(5, 200)
    np.testing.assert_array_equal(machine["main"](*machine.tensors([x])).numpy(), compiled.run(x)[0])


def test_a_server_told_to_load_the_library_serves_one_client_after_another(tmp_path):
    with serving(tmp_path, "--load-library", str(_smartmem_opencl.library_path())) as port:
        for _ in range(2):
            session = connect(port)
            tensor = tvm.runtime.tensor(numbers(SIZE), session.cl())
            np.testing.assert_array_equal(tensor.numpy(), numbers(SIZE))
            del tensor, session
