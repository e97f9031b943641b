# SPDX-License-Identifier: Apache-2.0
"""A quantized table whose rows are gathered, and which is the weight of a product: beside ONNX Runtime, stored once."""

import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, model_of, reference
from contrib_draws import Draw
from covering import seeds
from gguf_files import Network
from smartmem_tvm.cli import main
from smartmem_tvm.ir.sizes import LARGE

F = "float32"


class Tied:
    """A product of rows of a table with the table; sizes are drawn, but those given."""

    def __init__(self, draw: Draw, **given):
        self.bits, self.block = given.get("bits", draw.one(4, 8)), draw.one(16, 32, 64, 128)
        groups, self.level = draw.size(1, 6), given.get("level", draw.one(0, 0, 4))  # 4: rows are rounded to bytes
        self.how = given.get("how", draw.one("reshaped", "codes", "copied", "dequantized"))
        self.depth = groups * self.block
        # Smaller weights are in the library, and not counted.
        self.count = -(-LARGE * 8 // self.bits // self.depth) + draw.size(1, 200)
        packed = draw.random.integers(0, 256, (self.count, groups, self.block * self.bits // 8)).astype("uint8")
        scales = (draw.random.random((self.count, groups)) * 0.02 + 0.001).astype(F)
        self.given = {"b": packed, "s": scales}
        if given.get("zeros", draw.one(True, False)):
            self.given["z"] = draw.random.integers(0, 256, (self.count, -(-groups * self.bits // 8))).astype("uint8")
        kind, shape = draw.one("int32", "int64"), draw.one((), (1,), (3,), (1, 5), (2, 3))
        self.inputs = {"i": np.asarray(draw.random.integers(-self.count, self.count, shape)).astype(kind)}
        self.inputs["x"] = draw.floats(draw.one(1, 2, 9), self.depth)
        self.normed = given.get("normed", draw.one(True, False))  # several kernels, or stages, read the rows

    def model(self):
        """Return the graph: rows of the table, and the product of `x` with it."""
        given, nodes = dict(self.given), []
        if self.how == "dequantized":
            given = {"b": self.codes("b", self.depth), "s": given["s"]}
            given |= {"z": self.codes("z", self.depth // self.block)} if "z" in self.given else {}
            options = {"axis": 1, "block_size": self.block}
            nodes.append(helper.make_node("DequantizeLinear", list(given), ["w"], **options))
            nodes.append(helper.make_node("Gather", ["w", "i"], ["r"]))
            nodes.append(helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]))
            nodes.append(helper.make_node("MatMul", ["x", "wt"], ["y"]))
        else:
            nodes += self.contrib_nodes(given)
        if self.normed:
            nodes.append(helper.make_node("Mul", ["r", "r"], ["square"]))
            nodes.append(helper.make_node("ReduceMean", ["square", "last"], ["mean"]))
            nodes.append(helper.make_node("Sqrt", ["mean"], ["root"]))
            nodes.append(helper.make_node("Div", ["r", "root"], ["normed"]))
            given["last"] = np.array([-1])
        return model_of(nodes, self.inputs, {"normed" if self.normed else "r": F, "y": F}, given)

    def codes(self, name: str, columns: int):
        """Return codes, or zero points, as numbers of their own type."""
        packed = self.given[name].reshape(self.count, -1)
        whole = packed if self.bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(self.count, -1)
        return whole[:, :columns].astype("uint8" if self.bits == 8 else "uint4")

    def contrib_nodes(self, given: dict) -> list:
        """Return the operators of ONNX Runtime; constants that they need besides are added to `given`."""
        names, nodes = ["b", "s", "z"][: len(given)], []
        if self.how == "reshaped":
            given["shape"] = np.array([self.count, -1])
            nodes.append(helper.make_node("Reshape", ["b", "shape"], ["t"]))
        else:
            given["t"] = given["b"].reshape(self.count, -1)
        copied = names[1:]
        if self.how == "copied":
            given |= {f"{name}_copy": given[name] for name in copied}
            copied = [f"{name}_copy" for name in copied]
        options = {"bits": self.bits, "block_size": self.block}
        axes = {"gather_axis": 0, "quantize_axis": 1}
        rows = ["t", "i", *copied]
        nodes.append(helper.make_node("GatherBlockQuantized", rows, ["r"], domain=RUNTIME, **options, **axes))
        options |= {"K": self.depth, "N": self.count, "accuracy_level": self.level}
        nodes.append(helper.make_node("MatMulNBits", ["x", *names], ["y"], domain=RUNTIME, **options))
        return nodes

    def compiled(self, **options):
        """Return the graph compiled, and ONNX Runtime's results."""
        model = self.model()
        wanted = reference(model, self.inputs, 1)
        for value, array in zip(model.graph.output, wanted):
            for size in array.shape:
                value.type.tensor_type.shape.dim.add(dim_value=size)
            value.type.tensor_type.shape.SetInParent()
        return sm.compile(sm.from_onnx(model), **options), wanted

    @property
    def tables(self) -> int:
        """Size of the codes in bytes: that of the smallest form in which they could be stored."""
        return self.count * self.depth * self.bits // 8


def tables_in(compiled, tied: Tied) -> int:
    return sum(each.nbytes >= tied.tables for each in compiled.weights)


@pytest.mark.parametrize("seed", seeds(6, 24, 120))
def test_drawn_at_random(seed):
    tied = Tied(Draw(seed))
    compiled, wanted = tied.compiled()
    results = compiled.run(*tied.inputs.values())
    for got, want in zip(results, wanted, strict=True):
        assert got.shape == want.shape
        near = 2e-2 if tied.level and got is results[1] else 5e-6
        np.testing.assert_allclose(got, want, rtol=0, atol=near * np.abs(want).max())
    assert tables_in(compiled, tied) == 1


def test_indices_beyond_the_table_give_zeros():
    tied = Tied(Draw(0), how="codes", normed=False)
    tied.inputs["i"] = np.array([1, 0, 1])
    compiled, _ = tied.compiled()
    rows = compiled.run(np.array([tied.count, -1, -tied.count - 1]), tied.inputs["x"])[0]
    assert not rows[[0, 2]].any() and rows[1].any()


@pytest.mark.parametrize("part", ["b", "s", "z"])
def test_tables_that_differ_are_two(part):
    tied = Tied(Draw(1), how="copied", zeros=True, bits=4, level=0)
    tied.inputs["i"] = np.array([0, 3])
    model = tied.model()
    name = {"b": "t"}.get(part, f"{part}_copy")
    at = next(each for each in model.graph.initializer if each.name == name)
    changed = bytearray(at.raw_data)
    changed[0] ^= 1
    at.raw_data = bytes(changed)
    tied.model = lambda: model
    compiled, wanted = tied.compiled()
    for got, want in zip(compiled.run(*tied.inputs.values()), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())
    assert tables_in(compiled, tied) == 2


@pytest.mark.parametrize("table", ["Q4_0", "Q8_0"])
def test_a_folder_holds_the_table_once(table, tmp_path):
    network = Network("llama", "Q4_0", table, None, layers=1, vocabulary=3001, context=24, seed=1)
    reference, out = network.write(tmp_path / "model.gguf"), tmp_path / "out"
    assert main(["compile", str(tmp_path / "model.gguf"), "-o", str(out), "--cache", "auto"]) == 0
    prompt = [3, 1, 3000]
    wanted = reference.scores(prompt)[-1]
    scores = sm.Decoder(str(out)).feed(prompt)
    np.testing.assert_allclose(scores, wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())
    codes = 3001 * 64 * {"Q4_0": 4, "Q8_0": 8}[table] // 8
    assert codes <= (out / "weights.bin").stat().st_size < 1.1 * codes  # the others are small
