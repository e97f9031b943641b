# SPDX-License-Identifier: Apache-2.0
"""Runs ONNX's own tests of its operators (``onnx.backend.test``) through this package.

    python tests/onnx_nodes/node_tests.py [-k PATTERN] [--frozen] [--cpu haswell] [--write] [--workers 2]

Each test is a model of one operator (or of the function that defines it) with inputs and outputs. Its outputs must
have the very dtypes and shapes, and the values within the test's own tolerance. ``--frozen`` turns shape-like inputs
(integers of rank 0 or 1) into initializers first, as exporters write them: many operators have static shapes only then.
``--cpu`` compiles for another CPU than this one, by LLVM's name of it, which this one must be able to stand for.
``--write`` writes ``known.json``: every test that does not pass with the refusal it gets.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from smartmem_tvm.executor.workers import Workers

KNOWN = Path(__file__).with_name("known.json")
PATIENCE = 60.0  # seconds for one test
MODES = ("strict", "frozen")
# What their expected numbers are off by: numpy's FFT gives 1.9e-7 where the transform of whole numbers is 0.
ROUNDED = {"test_dft_inverse": 2e-7, "test_dft_inverse_opset19": 2e-7}
_HALVES = (np.float16, ml_dtypes.bfloat16)


@cache
def tests() -> dict:
    """ONNX's tests by name."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {test.name: test for test in load_model_tests(kind="node")}


def judge(job: tuple[str, str, str | None]) -> tuple[str, str]:
    """Run one test.

    Parameters
    ----------
    job : (str, str, str or None)
        The test's name; the mode, one of `MODES`; the CPU, None for this one.

    Returns
    -------
    (str, str)
        ``pass``, ``wrong``, ``refused`` or ``internal``; and why.
    """
    import tvm

    import smartmem_tvm as sm

    test, mode = tests()[job[0]], job[1]
    target = {"kind": "llvm", "mcpu": job[2], "num-cores": 2} if job[2] else None
    given, want = ([_array(each) for each in part] for part in test.data_sets[0])
    model, given = freeze(test.model, given) if mode == "frozen" else (test.model, given)
    try:
        got = sm.compile(sm.from_onnx(model), target and tvm.target.Target(target)).run(*given)
    except sm.UserError as error:
        return "refused", str(error)
    except Exception as error:
        return "internal", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    reason = difference(got, want, test.rtol, max(test.atol, ROUNDED.get(job[0].removesuffix("_expanded"), 0.0)))
    return ("wrong", reason) if reason else ("pass", "")


def _array(value):
    """A tensor as an array, of rank 0 if the test has a number of numpy; sequences and optionals as they are."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def is_frozen(name: str) -> bool:
    """Whether freezing changes a test: all others are the same in both modes."""
    test = tests()[name]
    arrays = [_array(each) for each in test.data_sets[0][0]]
    return len(freeze(test.model, arrays)[1]) < len(arrays)


# Inputs that decide the shape of a result, though they are numbers of floating point.
_SHAPE_LIKE = {"Resize": (1, 2), "Upsample": (1,), "Range": (0, 1, 2), "OneHot": (1,)}


def freeze(model: onnx.ModelProto, arrays: list) -> tuple[onnx.ModelProto, list]:
    """Turn inputs that look like shapes, axes or counts into initializers; return the model and the other inputs."""
    frozen, left, kept = onnx.ModelProto(), [], []
    frozen.CopyFrom(model)
    shapes = {
        node.input[at] for node in model.graph.node for at in _SHAPE_LIKE.get(node.op_type, ()) if at < len(node.input)
    }
    for value, array in zip(model.graph.input, arrays, strict=True):
        if isinstance(array, np.ndarray) and array.ndim <= 1 and (array.dtype.kind == "i" or value.name in shapes):
            frozen.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            left.append(array)
            kept.append(value)
    del frozen.graph.input[:]
    frozen.graph.input.extend(kept)
    return frozen, left


def difference(got: list, want: list, rtol: float, atol: float) -> str:
    """What is wrong with the outputs, empty if nothing."""
    if len(got) != len(want):
        return f"{len(got)} outputs for {len(want)}"
    for number, (mine, right) in enumerate(zip(got, want, strict=True)):
        if not isinstance(right, np.ndarray) or mine.shape != right.shape or mine.dtype != right.dtype:
            kind = f"{right.dtype}{list(right.shape)}" if isinstance(right, np.ndarray) else type(right).__name__
            return f"output {number} is {mine.dtype}{list(mine.shape)} for {kind}"
        if mine.dtype.kind in "OSU":
            bad = mine != right
        else:
            # A number of few bits is not held to more digits than it has: two units in its last place.
            rtol = max(rtol, 2 * float(ml_dtypes.finfo(right.dtype).eps)) if right.dtype in _HALVES else rtol
            wide = "c16" if mine.dtype.kind == "c" else "f8" if mine.dtype.kind not in "iub" else mine.dtype
            bad = ~np.isclose(mine.astype(wide), right.astype(wide), rtol=rtol, atol=atol, equal_nan=True)
        if np.any(bad):
            return f"{np.sum(bad)} of {bad.size} numbers of output {number} are wrong"
    return ""


def run_all(
    names: list[str], mode: str, workers: int, each=lambda name, result: None, cpu: str | None = None
) -> dict[str, tuple[str, str]]:
    """Run tests in processes of their own, so that a crash or an endless loop is a result too."""
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    with contextlib.closing(Workers(workers, PATIENCE, imports=("smartmem_tvm.deploy", "node_tests"))) as pool:
        results = {}
        for number, answer in pool.as_done(judge, [(name, mode, cpu) for name in names]):
            results[names[number]] = ("crash", answer.error) if answer.error else tuple(answer.value)
            each(names[number], results[names[number]])
    return {name: results[name] for name in names}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", help="only tests whose names match this expression, in any case")
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--cpu", help="LLVM's name of another CPU than this one")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--write", action="store_true", help=f"write {KNOWN.name}, both modes")
    parser.add_argument("--json", help="write all results to this file")
    arguments = parser.parse_args()
    names = [name for name in tests() if re.search(arguments.k, name, re.IGNORECASE)]
    known, failed, results = {}, 0, {}
    for mode in MODES if arguments.write else ["frozen" if arguments.frozen else "strict"]:
        changed = [name for name in names if name not in results or is_frozen(name)]
        results = {**results, **run_all(changed, mode, arguments.workers, _show, arguments.cpu)}
        print(f"{mode}: {len(results)} tests,", dict(Counter(status for status, _ in results.values())))
        known[mode] = {name: list(result) for name, result in results.items() if result[0] != "pass"}
        failed += sum(status not in ("pass", "refused") for status, _ in results.values())
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(results, indent=0))
    if arguments.write:
        KNOWN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return int(failed > 0)


def _show(name: str, result: tuple[str, str]) -> None:
    if result[0] != "pass":
        print(f"{result[0]:9s} {name}: {result[1][:300]}", flush=True)


if __name__ == "__main__":
    # Workers find `judge` in a module of this name, not in __main__.
    sys.path.insert(0, str(Path(__file__).parent))
    import node_tests

    sys.exit(node_tests.main())
