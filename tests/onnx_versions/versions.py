# SPDX-License-Identifier: Apache-2.0
"""Runs a case of each operator of ONNX in each version of its schema, from opset 1 to the newest.

    python tests/onnx_versions/versions.py [-k PART_OF_A_NAME] [--write] [--workers 2]

``--write`` writes ``known.json``: every case that does not pass, with the refusal that it gets, and beside what each of
the others was run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parent.parent))

from onnx_versions.cases import NEWEST, Case, all_cases, withdrawn
from smartmem_tvm.executor.workers import Workers

KNOWN = Path(__file__).with_name("known.json")
PATIENCE = 600.0  # seconds for the cases of one model
TOGETHER = 30  # cases in a model
RUNTIME, NUMPY, NEW = "ONNX Runtime", "numpy", "its newest version"
OTHER = "ONNX's own implementation, not as ONNX Runtime"


class Unknown(Exception):
    """There is no one to say what is right."""


def right(case: Case, opset: int) -> tuple[list[np.ndarray], str]:
    """What a case should compute, and who says so.

    Raises
    ------
    Unknown
        If none does.
    """
    with contextlib.suppress(Exception):
        return _by_runtime(case.model(opset), case.feeds), RUNTIME
    if case.want is not None:
        found = case.want(*case.values)
        found = found if isinstance(found, list | tuple) else [found]
        return [_as_given(each, case) for each in found], NUMPY
    for run in (_by_runtime, _by_reference):
        for newest in (NEWEST, 21):
            with contextlib.suppress(Exception):
                return run(case.model(newest, with_old=False), case.feeds), NEW
    raise Unknown(f"{case.op} of opset {opset}")


def _as_given(value, case: Case) -> np.ndarray:
    """Numpy's double precision is none of the case's."""
    value = np.asarray(value)
    floats = [each.dtype for each in case.values if each is not None and each.dtype.kind == "f"]
    return value.astype(floats[0]) if value.dtype == "f8" and floats and case.op != "Cast" else value


def _by_runtime(model: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, feeds)]


def _by_reference(model: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feeds)]


def stated(case: Case, opset: int, results: list[np.ndarray]) -> onnx.ModelProto:
    """The model of a case, with the types of its results."""
    model = case.model(opset)
    for output, value in zip(model.graph.output, results, strict=True):
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, kind, value.shape))
    return model


def cases() -> dict[str, tuple[Case, int]]:
    """Name -> a case and its opset, without operators that their version withdraws."""
    gone = withdrawn()
    return {name: (case, opset) for name, case, opset in all_cases() if (case.op, opset) not in gone}


def judge(names: list[str]) -> dict[str, tuple[str, str]]:
    """Run cases of one opset: as one model if they are imported, each alone if anything of that is not right.

    Returns
    -------
    dict
        Name -> ``pass`` and who said what is right; or ``wrong``, ``refused``, ``internal``, ``unknown`` and why.
    """
    found = {name: _imported(name) for name in names}
    together = {name: cases()[name][0] for name in names if found[name][0] == "pass" and cases()[name][0].graph is None}
    right = set()
    with contextlib.suppress(Exception):  # whatever it is, each alone says it again
        right = {name for name, why in _run_together(together, cases()[names[0]][1]).items() if not why}
    alone = [name for name in names if found[name][0] == "pass" and name not in right]
    return found | {name: judge_alone(name) for name in alone}


def _imported(name: str) -> tuple[str, str]:
    import smartmem_tvm as sm

    case, opset = cases()[name]
    try:
        want, who = right(case, opset)
    except Unknown as error:
        return "unknown", str(error)
    try:
        sm.from_onnx(stated(case, opset, want))
    except sm.UserError as error:
        return "refused", str(error)
    except Exception as error:
        return "internal", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "pass", who


def _run_together(together: dict[str, Case], opset: int) -> dict[str, str]:
    """What is wrong with each case of a model of all."""
    import smartmem_tvm as sm
    from onnx_versions.joined import joined

    model, feeds, wanted = joined(together, opset)
    got = iter(sm.compile(sm.from_onnx(model)).run(**feeds))
    return {name: difference([next(got) for _ in want], want) for name, want in wanted.items()}


def judge_alone(name: str) -> tuple[str, str]:
    """Run one case, as `judge` does."""
    import smartmem_tvm as sm

    case, opset = cases()[name]
    want, who = right(case, opset)
    model = stated(case, opset, want)
    try:
        got = sm.compile(sm.from_onnx(model)).run(*case.feeds.values())
    except sm.UserError as error:
        return "refused", str(error)
    except Exception as error:
        return "internal", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    reason = difference(got, want)
    if reason and who == RUNTIME:
        with contextlib.suppress(Exception):
            if not difference(got, _by_reference(model, case.feeds)):
                return "pass", OTHER
    return ("wrong", f"{reason} ({who})") if reason else ("pass", who)


def difference(got: list, want: list) -> str:
    """What is wrong with the outputs, empty if nothing."""
    if len(got) != len(want):
        return f"{len(got)} outputs for {len(want)}"
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"output {number} is {mine.dtype}{list(mine.shape)} for {theirs.dtype}{list(theirs.shape)}"
        if not np.allclose(mine.astype("f8"), theirs.astype("f8"), rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"output {number} is off by {np.abs(mine.astype('f8') - theirs.astype('f8')).max():.3g}"
    return ""


def groups(names: list[str]) -> list[list[str]]:
    """Cases that are compiled together."""
    of_opset: dict[int, list[str]] = {}
    for name in names:
        of_opset.setdefault(cases()[name][1], []).append(name)
    return [part[i : i + TOGETHER] for part in of_opset.values() for i in range(0, len(part), TOGETHER)]


def run_all(names: list[str], workers: int, each=lambda name, result: None) -> dict[str, tuple[str, str]]:
    """Run cases in processes of their own, so that a crash or an endless loop is a result too."""
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    imports = ("smartmem_tvm.deploy", "onnxruntime", "onnx_versions.versions")
    jobs, results = groups(names), {}
    with contextlib.closing(Workers(workers, PATIENCE, imports=imports)) as pool:
        for number, answer in pool.as_done(judge, jobs):
            found = dict.fromkeys(jobs[number], ("crash", answer.error)) if answer.error else answer.value
            for name, result in found.items():
                results[name] = tuple(result)
                each(name, results[name])
    return {name: results[name] for name in names}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", help="only cases whose names contain this")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--write", action="store_true", help=f"write {KNOWN.name}")
    arguments = parser.parse_args()
    results = run_all([name for name in cases() if arguments.k in name], arguments.workers, _show)
    print(f"{len(results)} cases,", dict(Counter(status for status, _ in results.values())))
    print(dict(Counter(who for status, who in results.values() if status == "pass")))
    if arguments.write:
        known = {
            "refused": {name: why for name, (status, why) in results.items() if status == "refused"},
            "beside": dict(Counter(who for status, who in results.values() if status == "pass")),
        }
        KNOWN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return int(any(status not in ("pass", "refused") for status, _ in results.values()))


def _show(name: str, result: tuple[str, str]) -> None:
    if result[0] != "pass":
        print(f"{result[0]:9s} {name}: {result[1][:300]}", flush=True)


if __name__ == "__main__":
    # Workers find `judge` in a module of this name, not in __main__.
    from onnx_versions import versions

    sys.exit(versions.main())
