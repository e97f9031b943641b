# SPDX-License-Identifier: Apache-2.0
"""TransformWindows: convolutions by transformed tiles against float64, and what is left as it is."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi

from covering import pairs, singles
from smartmem_tvm.errors import UserError
from smartmem_tvm.options import Options
from smartmem_tvm.pass_registry import make_pass
from smartmem_tvm.pipeline import phases_of
from smartmem_tvm.schedule import ScheduleKernels, TransformWindows
from smartmem_tvm.schedule.constants import transform_windows
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.schedule.cpu.priced_work import Work
from smartmem_tvm.schedule.cpu.tile import Tile
from smartmem_tvm.schedule.cpu.winograd.channel_plan import ChannelPlan
from smartmem_tvm.schedule.cpu.winograd.plan import Division, WinogradPlan
from smartmem_tvm.schedule.schedule_kernels import kernel_rules

ONE, FOUR = ({"kind": "llvm", "num-cores": cores} for cores in (1, 4))
WIDE = {**ONE, "mattr": ["+avx512f"]}


@dataclass(frozen=True)
class Conv:
    """A convolution, and what is fused with it: padding before, bias, another tensor and a maximum after."""

    n: int
    c: int
    h: int
    w: int
    out: int
    groups: int = 1
    pad: int = 1
    size: int = 3
    stride: int = 1
    dilation: int = 1
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the picture."""
        return self.n, self.c, self.h, self.w

    @property
    def windows(self) -> tuple[int, ...]:
        """Shape of the weights."""
        return self.out, self.c // self.groups, self.size, self.size

    def body(self, x, k, b):
        """The kernel."""
        total = topi.nn.group_conv2d_nchw(x, k, self.stride, self.pad, self.dilation, self.groups, self.dtype)
        zero = tirx.const(0, self.dtype)
        return te.compute(total.shape, lambda i, f, y, z: tirx.max(total[i, f, y, z] + b[f], zero))

    def reference(self, x, k, b):
        """Its result, in float64."""
        reach = self.dilation * (self.size - 1) + 1
        x = np.pad(x.astype("float64"), ((0, 0), (0, 0), (self.pad,) * 2, (self.pad,) * 2))
        seen = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), axis=(2, 3))
        seen = seen[:, :, :: self.stride, :: self.stride, :: self.dilation, :: self.dilation]
        seen = seen.reshape(self.n, self.groups, self.c // self.groups, *seen.shape[2:])
        weights = k.astype("float64").reshape(self.groups, -1, *self.windows[1:])
        total = np.einsum("ngiyzpq,goipq->ngoyz", seen, weights, optimize=True)
        return np.maximum(total.reshape(self.n, self.out, *total.shape[3:]) + b[:, None, None], 0)


@dataclass(frozen=True)
class Tokens(Conv):
    """The same with the channels innermost, in the picture and in the result."""

    def body(self, x, k, b):
        """The kernel."""
        around = [0, self.pad, self.pad, 0]
        x = topi.nn.pad(x, around, around) if self.pad else x
        c, p, q = (te.reduce_axis((0, size), name) for size, name in zip(self.windows[1:], "cpq", strict=True))
        shape = (self.n, *(size + 2 * self.pad - 2 for size in (self.h, self.w)), self.out)
        total = te.compute(shape, lambda i, y, z, f: te.sum(x[i, y + p, z + q, c] * k[f, c, p, q], axis=[c, p, q]))
        zero = tirx.const(0, self.dtype)
        return te.compute(shape, lambda i, y, z, f: tirx.max(total[i, y, z, f] + b[f], zero))

    def reference(self, x, k, b):
        """Its result, in float64."""
        return super().reference(x.transpose(0, 3, 1, 2), k, b).transpose(0, 2, 3, 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the picture."""
        return self.n, self.h, self.w, self.c


def draw(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng((*shape, seed)).standard_normal(shape)


def module(conv: Conv, *weights, constant=True) -> tvm.IRModule:
    """``main(x)``, a tuple with the convolution by each of the weights."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(conv.shape, conv.dtype))
    k = relax.Var("k", relax.TensorType(conv.windows, conv.dtype))
    with builder.function("main", [x] if constant else [x, k]):
        with builder.dataflow():
            bias = relax.const(draw(conv.out).astype(conv.dtype))
            made = [builder.emit_te(conv.body, x, relax.const(each) if constant else k, bias) for each in weights]
            results = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(results)
    return builder.get()


def scheduled(mod: tvm.IRModule, target: dict, result: int | None) -> tvm.IRModule:
    with tvm.target.Target(target):
        return ScheduleKernels()(TransformWindows(result)(mod))


def names(mod: tvm.IRModule) -> set[str]:
    return {rule["name"] for rule in kernel_rules(mod).values()}


def built(mod: tvm.IRModule, target: dict) -> relax.VirtualMachine:
    return relax.VirtualMachine(relax.build(mod, tvm.target.Target(target)), tvm.cpu())


def results(mod: tvm.IRModule, target: dict, *arrays) -> list[np.ndarray]:
    return [each.numpy() for each in built(mod, target)["main"](*map(tvm.runtime.tensor, arrays))]


def errors(conv: Conv, pictures, weights, target: dict, result: int) -> list[float]:
    """The largest deviation from float64 of each picture, as a share of its largest result."""
    weights, bias = weights.astype("float32"), draw(conv.out).astype("float32")
    mod = scheduled(module(conv, weights), target, result)
    assert names(mod) == {"Elementwise + Winograd" if conv.pad else "Winograd"}
    vm, found = built(mod, target), []
    for x in (each.astype("float32") for each in pictures):
        expected = conv.reference(x, weights, bias)
        got = vm["main"](tvm.runtime.tensor(x))[0].numpy()
        found.append(float(np.abs(got - expected).max() / np.abs(expected).max()))
    return found


def error(conv: Conv, x, weights, target: dict, result: int) -> float:
    """The only one of `errors`."""
    return errors(conv, [x], weights, target, result)[0]


SHAPES = [
    Conv(1, 4, 8, 8, 4),
    Conv(1, 7, 13, 29, 5),
    Conv(2, 6, 9, 7, 10, groups=2),
    Conv(1, 3, 2, 5, 8),
    Conv(1, 1, 17, 17, 2),
    Conv(1, 16, 14, 14, 33, pad=0),
    Conv(3, 5, 6, 50, 20, pad=2),
]


@pytest.mark.parametrize("conv, m", singles(SHAPES, (2, 4)))
def test_results(conv, m):
    assert error(conv, draw(conv.n, conv.c, conv.h, conv.w), draw(*conv.windows), ONE, m) < 5e-6


@pytest.mark.parametrize("conv, m", [(SHAPES[1], 4), (Conv(4, 6, 9, 7, 10, groups=2), 2), (Conv(1, 70, 12, 12, 70), 4)])
def test_results_on_threads(conv, m):
    """Blocks, or channels and filters, are spread over four threads."""
    assert error(conv, draw(conv.n, conv.c, conv.h, conv.w), draw(*conv.windows), FOUR, m) < 5e-6


TOKENS = [
    Tokens(1, 16, 8, 8, 16),
    Tokens(1, 7, 13, 29, 5),
    Tokens(2, 40, 9, 7, 33),
    Tokens(1, 3, 2, 5, 8),
    Tokens(1, 2, 17, 17, 3),
    Tokens(1, 16, 14, 14, 100, pad=0),
    Tokens(3, 5, 6, 50, 20, pad=2),
    Tokens(1, 16, 12, 12, 64),  # filters of the widest register tile, of which no row may fit
]


@pytest.mark.parametrize("conv, case", singles(TOKENS, pairs((2, 4), (ONE, FOUR))))
def test_channels_innermost(conv, case):
    m, target = case
    assert error(conv, draw(*conv.shape), draw(*conv.windows), target, m) < 5e-6


@pytest.mark.parametrize(
    "conv, rows, outside, target",
    pairs([Tokens(1, 20, 31, 13, 6), Conv(1, 5, 31, 13, 6)], [2, 3], [False, True], [ONE, FOUR]),
)
def test_blocks_of_rows(monkeypatch, conv, rows, outside, target):
    """A block holds some rows of tiles, the last one fewer: 8 rows in blocks of 3; threads take blocks, or do each."""
    monkeypatch.setattr(transform_windows.WinogradPlan, "division", Division(rows, outside, {}, 1.0))
    assert error(conv, draw(*conv.shape), draw(*conv.windows), target, 4) < 5e-6


@pytest.mark.each_value
@pytest.mark.parametrize("rows", [3, 8])
@pytest.mark.parametrize(
    "conv",
    [Conv(1, 5, 31, 13, 6), Conv(4, 6, 9, 7, 10, groups=2), Conv(1, 9, 31, 31, 23)],
    ids=["one", "groups", "many"],
)
def test_products_apart_from_results(monkeypatch, conv, rows):
    """Threads take panels at points, and then filters; the last panel has fewer filters."""
    division = Division(min(rows, -(-conv.h // 4)), False, {}, 1.0, apart=True)
    monkeypatch.setattr(transform_windows.WinogradPlan, "division", division)
    assert error(conv, draw(*conv.shape), draw(*conv.windows), FOUR, 4) < 5e-6


def test_few_panels_are_no_few_tasks(monkeypatch):
    """Twelve panels of eight filters would leave four of sixteen threads without work."""
    plans = []
    monkeypatch.setattr(transform_windows, "_choose", lambda windows, params, **_: plans.append(windows))
    conv = Conv(1, 96, 35, 35, 96)
    scheduled(module(conv, draw(*conv.windows).astype("float32")), {**WIDE, "num-cores": 16}, None)
    found = WinogradPlan(plans[0], 4, CpuParams.of(tvm.target.Target({**WIDE, "num-cores": 16})))
    assert found.division.apart and found.points * found.panels % 16 == 0


@pytest.mark.parametrize(("parts", "together"), [(1, 1), (2, 2), (3, 1), (4, 4), (8, 1)])
def test_parts_of_a_block(monkeypatch, parts, together):
    """Threads take parts of the rows and of the filters; the last part has fewer rows of tiles."""
    rows = -(-8 // parts) * parts
    division = Division(rows, False, {}, 1.0, parts, Tile(3, 8), together)
    monkeypatch.setattr(transform_windows.ChannelPlan, "division", division)
    conv = Tokens(2, 20, 31, 13, 32)
    assert error(conv, draw(*conv.shape), draw(*conv.windows), FOUR, 4) < 5e-6


@pytest.mark.parametrize("extent, channels", [(56, 64), (28, 128), (14, 256), (7, 512), (128, 64)])
@pytest.mark.parametrize("kind", [Tokens, Conv])
def test_many_threads_have_work(monkeypatch, kind, extent, channels):
    """Of the layers of ResNet-18 none leaves most of sixteen threads without work."""
    plans = []

    def choose(windows, params, **_):
        make = ChannelPlan if windows.innermost else WinogradPlan
        plans.extend((make(windows, 2, params), make(windows, 2, replace(params, cores=1))))

    monkeypatch.setattr(transform_windows, "_choose", choose)
    conv = kind(1, channels, extent, extent, channels)
    scheduled(module(conv, draw(*conv.windows).astype("float32")), {**WIDE, "num-cores": 16}, None)
    many = plans[0].division
    cycles = [Work(plan.params, plan.division.work).price.cycles for plan in plans]
    assert cycles[1] / cycles[0] > 5 and many.share < 0.2


VOLUMES = [(1, 16, 4, 9, 7, 16), (2, 32, 3, 14, 14, 5), (1, 6, 3, 8, 8, 4)]


@pytest.mark.parametrize("sizes", VOLUMES)
def test_volumes_with_channels_innermost(sizes):
    """Windows over pictures as well: those are summed up beside the channels, of which a vector is of one picture."""
    n, c, d, h, w, out = sizes
    x, weights = (draw(*shape).astype("float32") for shape in ((n, d, h, w, c), (out, c, 3, 3, 3)))

    def body(x, k):
        x = topi.nn.pad(x, [0, 1, 1, 1, 0], [0, 1, 1, 1, 0])
        i, o, p, q = (te.reduce_axis((0, size), name) for size, name in zip((c, 3, 3, 3), "copq", strict=True))

        def one(b, t, y, z, f):
            return te.sum(x[b, t + o, y + p, z + q, i] * k[f, i, o, p, q], axis=[i, o, p, q])

        return te.compute((n, d, h, w, out), one)

    builder = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with builder.function("main", [var]):
        with builder.dataflow():
            made = builder.emit_output(relax.Tuple([builder.emit_te(body, var, relax.const(weights))]))
        builder.emit_func_output(made)
    mod = scheduled(builder.get(), ONE, 4)
    assert ("Elementwise + Winograd" in names(mod)) == (c % 4 == 0)
    padded = np.pad(x.astype("float64"), ((0, 0), (1, 1), (1, 1), (1, 1), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3, 3), axis=(1, 2, 3))
    expected = np.einsum("btyzcopq,fcopq->btyzf", seen, weights.astype("float64"), optimize=True)
    found = results(mod, ONE, x)[0]
    assert np.abs(found - expected).max() < 5e-6 * np.abs(expected).max()


BADLY_SCALED = {
    "random": lambda x: x,
    "far from zero": lambda x: x + 1000,
    "one large number": lambda x: np.where(x == x.max(), 1e6, x),
    "channels of many sizes": lambda x: x * 10.0 ** np.linspace(-8, 8, x.shape[1])[:, None, None],
    "a picture that fades": lambda x: x * 10.0 ** np.linspace(0, -12, x.shape[3]),
    "tiny": lambda x: x * 1e-30,
}


@pytest.mark.parametrize("m", [2, 4])
def test_errors_stay_under_1e_4_of_the_largest_result(m):
    conv, x = Conv(1, 64, 14, 14, 16), draw(1, 64, 14, 14)
    pictures = [change(x) for change in BADLY_SCALED.values()]
    found = dict(zip(BADLY_SCALED, errors(conv, pictures, draw(*conv.windows) / 24, ONE, m), strict=True))
    assert max(found.values()) < 1e-4, found


LEFT_ALONE = {
    "larger windows": Conv(1, 8, 9, 9, 8, size=5),
    "strided": Conv(1, 8, 9, 9, 8, stride=2),
    "dilated": Conv(1, 8, 9, 9, 8, dilation=2),
    "halves": Conv(1, 8, 9, 9, 8, dtype="float16"),
    "doubles": Conv(1, 8, 9, 9, 8, dtype="float64"),
    "one channel in a group": Conv(1, 8, 9, 9, 8, groups=8),
    "one filter": Conv(1, 4, 9, 9, 1),
    "a picture of one line": Conv(1, 3, 1, 5, 8),
    "one result": Conv(1, 8, 3, 3, 4, pad=0),
}


@pytest.mark.parametrize("how", LEFT_ALONE)
def test_what_is_left_as_it_is(how):
    conv = LEFT_ALONE[how]
    found = names(scheduled(module(conv, draw(*conv.windows).astype(conv.dtype)), ONE, 2))
    assert found and not any("Winograd" in name for name in found)


def test_computed_weights_are_left_as_they_are():
    conv = Conv(1, 16, 12, 12, 16)
    mod = scheduled(module(conv, draw(*conv.windows).astype("float32"), constant=False), ONE, 4)
    assert "Elementwise + Winograd" not in names(mod)


def test_weights_with_large_errors_are_left_as_they_are(monkeypatch):
    conv, asked = Conv(1, 16, 12, 12, 16), []
    monkeypatch.setattr(transform_windows, "error_of", lambda m, windows: asked.append(m) or 3e-5)
    assert "Elementwise + Winograd" not in names(scheduled(module(conv, draw(*conv.windows).astype("float32")), ONE, 4))
    assert asked == [4]


def test_one_kernel_has_weights_of_its_own_in_each_call():
    conv = Conv(1, 16, 12, 12, 16)
    weights = [draw(*conv.windows, seed=seed).astype("float32") for seed in (1, 2)]
    mod = scheduled(module(conv, *weights), ONE, 4)
    x, bias = draw(1, 16, 12, 12).astype("float32"), draw(16).astype("float32")
    for found, each in zip(results(mod, ONE, x), weights, strict=True):
        np.testing.assert_allclose(found, conv.reference(x, each, bias), atol=1e-3)


@pytest.mark.parametrize(
    "conv, rule",
    [
        (Conv(1, 64, 56, 56, 64), "Elementwise + Winograd"),
        (Conv(1, 256, 14, 14, 256), "Elementwise + Winograd"),
        (Conv(1, 128, 28, 28, 32), "Elementwise + Winograd"),
        (Conv(1, 128, 56, 56, 128, groups=32), "Slide"),
        (Conv(1, 3, 224, 224, 16), "Slide"),
    ],
)
def test_the_model_chooses(conv, rule):
    assert names(scheduled(module(conv, draw(*conv.windows).astype("float32")), WIDE, None)) == {rule}


def test_options():
    made = make_pass("transform-windows", Options(winograd=2), None)
    assert isinstance(made, TransformWindows) and made.result == 2
    assert make_pass("transform-windows", Options(), None).result is None
    with pytest.raises(UserError, match="winograd 3 does not exist: use 2 or 4"):
        make_pass("transform-windows", Options(winograd=3), None)
    assert Options(memory_budget="1GB").winograd is False
    phase = next(phase for phase in phases_of(None) if "transform-windows" in phase.passes)
    assert "transform-windows" not in phase.chosen(Options(winograd=False))
