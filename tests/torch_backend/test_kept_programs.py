# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk: what is loaded is what was stored, and weights are there once; without torch."""

import math

import numpy as np
import pytest
import tvm
from tvm import relax

from smartmem_tvm import compile, torch_backend
from smartmem_tvm.deploy.binary_cache import BinaryCache
from smartmem_tvm.torch_backend import kept_programs
from smartmem_tvm.torch_backend.kept_programs import Ready, load, shared, store

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((192, 160)).astype("float32")  # above `ir.sizes.LARGE`


def product(rows, weight):
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((rows, 192), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, relax.const(weight)))
        builder.emit_func_output(result)
    return builder.finalize()


def made(rows, weight=WEIGHT, results=(None,)):
    compiled = compile(product(rows, weight), "llvm")
    weights = [shared(each) for each in compiled.weights]
    return compiled, Ready(compiled.executable, weights, (1,), results, [False])


@pytest.fixture
def kept(tmp_path):
    return BinaryCache(tmp_path / "kept")


def run(ready, x):
    return ready.machine(tvm.target.Target("llvm"), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def test_what_is_loaded_is_what_was_stored(kept):
    results = (None, 7, 2.5, math.inf, True)
    x = RNG.standard_normal((3, 192)).astype("float32")
    assert load(kept, "key") is None
    compiled, ready = made(3, results=results)
    here = store(kept, "key", compiled, ready)
    expected = run(ready, x)
    np.testing.assert_allclose(expected, x @ WEIGHT, rtol=1e-4, atol=1e-4)
    del compiled, ready  # with the weights of this process
    there = load(kept, "key")
    assert (there.inputs, there.results, there.copied) == ((1,), results, [False])
    for each in (here, there):
        np.testing.assert_array_equal(run(each, x), expected)
    assert load(kept, "other") is None


def test_a_weight_is_there_once_for_all_sizes(kept):
    stored = [store(kept, key, *made(3)) for key in ("a", "b")]
    sums = [{each.sum for each in ready.weights} for ready in stored]
    assert sums[0] == sums[1] and stored[0].weights[0] is stored[1].weights[0]
    together = set().union(*sums)
    assert len(list(kept.folder.iterdir())) == 2 + len(together), "two keys, and each form of the weight"


def test_other_weights_have_another_sum():
    tensors = [WEIGHT, WEIGHT + 1, WEIGHT.T.copy(), WEIGHT.astype("float16")]
    weights = [kept_programs.Weight(tvm.runtime.tensor(each)) for each in tensors]
    weights.append(kept_programs.Weight(tvm.runtime.tensor(WEIGHT), "global.texture"))
    assert len({shared(each).sum for each in weights}) == 5


def test_a_shared_weight_is_no_memory_of_others():
    tensor = tvm.runtime.tensor(np.arange(64, dtype="float32"))
    first = shared(kept_programs.Weight(tensor))
    np.from_dlpack(tensor)[3] = 99
    again = shared(kept_programs.Weight(tvm.runtime.tensor(np.arange(64, dtype="float32"))))
    assert again is first and again.tensor.numpy()[3] == 3


@pytest.mark.parametrize("lost", ["program", "weight"])
def test_a_lost_or_damaged_file_counts_as_missing(kept, lost, caplog):
    compiled, ready = made(4)
    sums = [each.sum for each in ready.weights]
    store(kept, "key", compiled, ready)
    path = kept._path(("program", "key") if lost == "program" else ("weight", sums[0]))
    del compiled, ready
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert load(kept, "key") is None and "is damaged" in caplog.text
    assert load(kept, "key") is None and not path.exists()
    store(kept, "key", *made(4))
    assert load(kept, "key") is not None


def test_without_a_linker_nothing_is_kept_and_the_log_says_why(kept, monkeypatch, caplog):
    from smartmem_tvm.deploy import link

    monkeypatch.setattr(link.cc, "get_cc", lambda: None)
    monkeypatch.setattr(link, "cross_compiler", lambda triple: None)
    kept_programs._without_linker.cache_clear()
    compiled, ready = made(2)
    for _ in range(2):
        assert store(kept, "key", compiled, ready) is ready
    assert load(kept, "key") is None
    (said,) = [each for each in caplog.messages if "are not kept" in each]
    assert "ziglang" in said


def test_results_that_json_lacks_are_not_kept(kept):
    compiled, ready = made(2, results=(None, 1j))
    assert store(kept, "key", compiled, ready) is ready and load(kept, "key") is None


def test_the_folder_is_chosen_shown_and_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("SMARTMEM_TORCH_CACHE", str(tmp_path / "here"))
    assert torch_backend.cache_folder() == tmp_path / "here"
    kept = kept_programs.kept_programs()
    assert kept.limit == kept_programs.MEGABYTES << 20
    kept.store(b"x", "key")
    assert torch_backend.clear_cache() == 1 and torch_backend.clear_cache() == 0
    monkeypatch.setenv("SMARTMEM_TORCH_CACHE_MB", "7")
    assert kept_programs.kept_programs().limit == 7 << 20
    monkeypatch.setenv("SMARTMEM_TORCH_CACHE", "0")
    assert torch_backend.cache_folder() is None and torch_backend.clear_cache() == 0


def test_refusals_are_kept(kept):
    assert kept_programs.load_refusal(kept, "key") is None
    kept_programs.store_refusal(kept, "key", "two results share memory")
    assert kept_programs.load_refusal(kept, "key") == "two results share memory"
    assert load(kept, "key") is None
