# SPDX-License-Identifier: Apache-2.0
"""Golden files: the OpenCL that is generated for some kernels, to be read and to see what a change does to it."""

import re

import pytest

import golden_source
from golden_source import UPDATE, assert_golden, folded
from helpers import module
from opencl_rules import check_opencl
from smartmem_tvm.deploy.build import compile
from smartmem_tvm.pipeline import Options
from smartmem_tvm.target import parse_target
from smartmem_tvm.tvm_mends.check_images import planned_memory
from texture_modules import body, sources
from texture_operators import ALONE, IMAGE, ROWS, attention, conv, dense, images, layer_norm, matrices, nn, op, weight

TARGET = parse_target("adreno-740")
IDENTIFIER = re.compile(r"\(convert_int\((get_(?:local|group)_id\(\d\))\)\)")


def hidden(x):
    return nn.gelu(dense(x, 16, 24) + weight(24, terms=1))


def scores(x):
    return nn.relu(op.matmul(x, op.permute_dims(x, [0, 2, 1])))


# File -> network, its input, its options, and the name of the kernel without the number behind it.
KERNELS = {
    "matmul_bias_gelu": (matrices(hidden, 24), ROWS, Options(), "matmul_add_gelu"),
    "batched_matmul": (matrices(scores, 11), ROWS, Options(), "matmul_relu"),
    "attention": (matrices(attention), ROWS, Options(), "matmul_softmax_matmul"),
    "conv2d_relu": (images(lambda t: nn.relu(conv(t, 8, 8))), IMAGE, Options(), "conv2d_relu"),
    "grouped_conv2d": (images(lambda t: nn.relu(conv(t, 8, 8, groups=2))), IMAGE, Options(), "conv2d_relu"),
    "depthwise_conv2d": (images(lambda t: nn.relu(conv(t, 8, 8, groups=8))), IMAGE, Options(), "conv2d_relu"),
    "max_pool": (images(lambda t: nn.max_pool2d(t, 3, 2, 1)), IMAGE, Options(), "max_pool2d"),
    "layer_norm": (matrices(lambda t: layer_norm(t, 16)), ROWS, ALONE, "layer_norm"),
    "softmax": (matrices(nn.softmax), ROWS, ALONE, "softmax"),
    "broadcast_multiply": (matrices(lambda t: t * op.max(t, 1, keepdims=True)), ROWS, ALONE, "multiply"),
}
IN_BUFFERS = ("matmul_bias_gelu", "conv2d_relu", "layer_norm", "broadcast_multiply")
FILES = [*KERNELS, *(f"{name}_in_buffers" for name in IN_BUFFERS)]


def generated(file):
    """The kernel's source; the numbers of threads and groups, which are everywhere, without the conversion to int."""
    network, shape, options, kernel = KERNELS[file.removesuffix("_in_buffers")]
    if file.endswith("_in_buffers"):
        options = Options(**{**vars(options), "textures": False})
    compiled = compile(module(network, shape), TARGET, options)
    assert check_opencl(compiled.executable, planned_memory(compiled.graph)) == compiled.texel_reads
    code = sources(compiled.executable)
    (name,) = (name for name in code if re.fullmatch(rf"{kernel}\d*", name))
    return IDENTIFIER.sub(r"\1", body(code[name])).replace(f"{name}_kernel", file)


@pytest.mark.parametrize("file", FILES)
def test_golden_file(file, request):
    source = generated(file)
    assert ("image2d_array_t" in source) is not file.endswith("_in_buffers")
    assert_golden(f"opencl/{file}.cl", source, request.config.getoption(UPDATE))


def test_every_golden_file_is_compared():
    assert {path.stem for path in (golden_source.FOLDER / "opencl").iterdir()} == set(FILES)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(golden_source, "FOLDER", tmp_path)
    return tmp_path


def test_a_mismatch_shows_the_difference_and_what_to_do(folder):
    assert_golden("some/kernel.cl", "a;\nb;\n", update=True)
    assert_golden("some/kernel.cl", "a;\nb;\n", update=False)
    with pytest.raises(AssertionError) as error:
        assert_golden("some/kernel.cl", "a;\nc;\n", update=False)
    said = str(error.value)
    assert "\n a;\n-b;\n+c;\n" in said and "--- tests/golden/some/kernel.cl" in said and f"pytest {UPDATE}" in said
    assert (folder / "some" / "kernel.cl").read_text() == "a;\nb;\n"


def test_a_missing_golden_file(folder):
    with pytest.raises(AssertionError, match=r"\+a;"):
        assert_golden("kernel.cl", "a;", update=False)
    assert not (folder / "kernel.cl").exists()


def test_unrolled_loops_are_folded():
    even = [f"  x[{4 * i}] = y[{9 - i}];" for i in range(6)]
    assert folded(["{", *even, "  x[1] = z;", "}"]) == [
        "{", even[0], "  ... 6 times in all, to", even[-1], "  x[1] = z;", "}"
    ]  # fmt: skip


def test_unrolled_loops_in_unrolled_loops_are_folded():
    blocks = [[f"a = b_{i};", *(f"c[{j}] += a * d[{i}];" for j in range(4))] for i in range(8)]
    assert folded([line for block in blocks for line in block]) == [
        "a = b_0;", "c[0] += a * d[0];", "... 4 times in all, to", "c[3] += a * d[0];",
        "... 8 times in all, to",
        "a = b_7;", "c[0] += a * d[7];", "... 4 times in all, to", "c[3] += a * d[7];",
    ]  # fmt: skip


@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 1, 2, 4, 8), (0, 1, 0, 2, 0), ()], ids=str)
def test_other_lines_are_kept(numbers):
    lines = [f"a[{number}];" for number in numbers]
    assert folded(lines) == lines
