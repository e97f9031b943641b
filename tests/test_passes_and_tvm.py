# SPDX-License-Identifier: Apache-2.0
"""TVM's own fusion, dlight's rules and MetaSchedule accept the output of each pass of this package.

Passes run alone, on operators or on kernels, and in the order of the pipeline. Equal kernels are tested once, whichever
passes make them.
"""

from functools import cache
from logging import getLogger

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op
from tvm.s_tir import dlight
from tvm.s_tir import meta_schedule as ms

from helpers import constant, module, random, run
from smartmem_tvm.ir.kernel import Opaque, parse
from smartmem_tvm.ir.regions import reads_joined
from smartmem_tvm.pass_registry import PASSES, make_pass
from smartmem_tvm.pipeline import Options, phases_of
from smartmem_tvm.schedule.core.rule import is_open
from smartmem_tvm.target import host_target
from smartmem_tvm.tune.metaschedule import import_intrinsics

LIMITS = {"max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80", **LIMITS}, host="llvm")
RULES = [getattr(dlight.gpu, name) for name in ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback")]
# These need more than a target and defaults: records, a device with textures, a budget, or kernels that are scheduled.
NEED_MORE = {"apply-records", "place-textures", "slice-weights", "stream-weights", "lift-workspaces"}
OWN = [name for name in PASSES if not name.startswith("relax.") and name not in NEED_MORE]


def emit(value):
    return relax.BlockBuilder.current().emit(value)


def network(x):
    """Attention whose q and k are parts of one merged product, a norm, and patterns for other passes."""
    q, k, v = (emit(op.add(op.matmul(x, constant(16, 16, seed=s)), constant(16, seed=s + 5))) for s in (1, 2, 3))
    scores = emit(op.multiply(op.matmul(q, op.permute_dims(k)), relax.const(0.25, "float32")))
    mixed = emit(op.matmul(op.nn.softmax(scores), v))
    parts = (op.strided_slice(mixed, [0], [4], [8]), op.strided_slice(mixed, [0], [0], [4]))
    rolled = emit(op.concat(parts, axis=0))
    normed = emit(op.nn.layer_norm(emit(op.add(rolled, x)), constant(16), constant(16, seed=9), axes=[-1]))
    image = emit(op.nn.relu(op.nn.conv2d(op.reshape(normed, (1, 8, 4, 4)), constant(8, 8, 3, 3), padding=1)))
    best = op.argmax(op.reshape(image, (8, 16)), axis=1)
    return op.nn.gelu(image), op.cumsum(op.reshape(image, (8, 16)), axis=1), op.take(normed, best, axis=0)


def legal(mod):
    t = relax.transform
    passes = [t.DecomposeOpsForInference(), relax.backend.DispatchSortScan(), t.LegalizeOps(), t.FoldConstant()]
    return tvm.transform.Sequential(passes)(mod)


def kernels(mod):
    return [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc) and is_open(func)]


class Seen:
    """Kernels that were given to all of TVM's rules already."""

    def __init__(self):
        self.hashes = set()

    def is_new(self, mod):
        key, before = tvm_ffi.structural_hash(mod), len(self.hashes)
        self.hashes.add(key)
        return len(self.hashes) > before

    def new(self, mod):
        for func in kernels(mod):
            key = tvm_ffi.structural_hash(func)
            if key not in self.hashes:
                self.hashes.add(key)
                yield func


@pytest.fixture(scope="module")
def seen():
    return Seen()


@cache
def alone(name):
    """Yield a pass's output for operators and for kernels, as far as the pass applies to them."""
    mod, found = module(network, (8, 16)), []
    with CUDA:
        for before, after in ((mod, legal), (legal(mod), lambda each: each)):
            found.append(after(make_pass(name, Options(), CUDA)(before)))
    return found


def fused(mod):
    t = relax.transform
    return tvm.transform.Sequential([t.AnnotateTIROpPattern(), t.FoldConstant(), t.FuseOps(), t.FuseTIR()])(mod)


def assert_taken(mod, seen):
    """Assert that each rule schedules or declines the kernel, and one schedules it, before and after fusion.

    TVM does not fuse scheduled kernels.
    """
    for each in (mod, fused(mod)) if seen.is_new(mod) and kernels(mod) else (mod,):
        for func in filter(is_functional, seen.new(each)):
            with CUDA:
                answers = [rule().apply(func, CUDA, False) for rule in RULES]
            assert any(answer is not None for answer in answers), func.script()


def is_functional(func):
    """Whether a kernel has functional form; TVM's sorts and scans on CPUs do not, and its rules take none of them."""
    try:
        return bool(parse(func).stages)
    except Opaque:
        return False


@pytest.mark.device
@pytest.mark.parametrize("name", OWN)
def test_alone(name, seen):
    for mod in alone(name):
        assert_taken(mod, seen)


@pytest.mark.device
@pytest.mark.parametrize("target", [host_target(), CUDA], ids=["llvm", "cuda"])
def test_in_the_order_of_the_pipeline(target, seen):
    mod, asked = module(network, (8, 16)), 0
    for phase in phases_of(target):
        if phase.name in ("lower", "plan_memory"):
            break
        for name in phase.chosen(Options()):
            with target:
                mod = make_pass(name, Options(), target)(mod)
                state = mod if kernels(mod) else legal(mod)
            assert_taken(state, seen)
            asked += 1
    assert asked > 20


def test_the_product_of_two_parts_of_one_tensor(seen):
    """One region around both places, as it was stated before, made ``dlight.gpu.Reduction`` fail."""
    mod = alone_after("merge-projections", "relax.LegalizeOps", "eliminate-layout")
    (func,) = [func for func in kernels(mod) if len(func.params) == 2 and "min" in str(reads_joined(func))]
    assert "T.min" not in str(func)
    assert_taken(mod, seen)


def alone_after(*names):
    mod = module(network, (8, 16))
    for name in names:
        with CUDA:
            mod = make_pass(name, Options(), CUDA)(mod)
    return mod


CPU = tvm.target.Target({"kind": "llvm", "num-cores": 2})
GRAPH = ["eliminate-layout", "fuse-rows", "fuse-operators"]


@pytest.mark.device
@pytest.mark.parametrize("target", [CPU, CUDA], ids=["llvm", "cuda"])
def test_metaschedule_has_designs_for_what_passes_leave(target):
    """MetaSchedule has a design space for each kernel, alone and as TVM fuses it, from which a search draws."""
    import_intrinsics()
    seen, asked = Seen(), 0
    for last in range(len(GRAPH) + 1):
        mod = alone_after("merge-projections", "relax.LegalizeOps", *GRAPH[:last])
        for func in filter(is_functional, [*seen.new(mod), *seen.new(fused(mod))]):
            kernel = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
            designs = ms.TuneContext(mod=kernel, target=target, space_generator="post-order-apply")
            assert designs.generate_design_space()
            asked += 1
    assert asked > 10


@pytest.mark.slow
@pytest.mark.parametrize("passes", [(), GRAPH[:1], GRAPH], ids=["merged", "eliminated", "fused"])
def test_tune_relax_with_two_trials(passes, tmp_path, monkeypatch):
    """Tuning works, and its schedules are applied and right."""
    import_intrinsics()
    # TVM's loggers fail on handlers without a format, such as pytest's.
    monkeypatch.setattr(ms.relax_integration, "get_loggers_from_work_dir", lambda _, names: list(map(getLogger, names)))

    def attention(x):
        q, k = (emit(op.matmul(x, constant(16, 16, seed=s))) for s in (1, 2))
        return op.nn.softmax(op.matmul(q, op.permute_dims(k)))

    mod = module(attention, (8, 16))
    for name in ("merge-projections", "relax.LegalizeOps", *passes):
        with CPU:
            mod = make_pass(name, Options(), CPU)(mod)
    found = ms.relax_integration.tune_relax(mod, {}, CPU, str(tmp_path), max_trials_global=2, seed=1)
    executable = ms.relax_integration.compile_relax(found, mod, CPU, {})
    (x,) = random((8, 16))
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(result, run(module(attention, (8, 16)), x)[0], rtol=1e-4, atol=1e-5)
