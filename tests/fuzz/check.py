# SPDX-License-Identifier: Apache-2.0
"""A case -> a verdict: what this package makes of it, compared with ONNX Runtime."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
import onnx

from . import nested, reference
from .case import Case
from .cut import cut
from .draw import FULL, GRAPHS, draw

OK, REFUSED, NOT_DRAWN, DISPUTED = "ok", "refused", "not drawn", "disputed"
WRONG, INTERNAL, CRASH, HANG, KILLED = "wrong", "internal error", "crash", "hang", "killed"
FAULTS = (WRONG, INTERNAL, CRASH, HANG)
TARGETS = {
    "llvm": "cpu",
    "llvm-avx2": '{"kind": "llvm", "mcpu": "haswell", "num-cores": 2}',
    "llvm-avx512": '{"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2}',
    **{name: name for name in ("opencl", "opencl-texture", "cuda")},
}
"""Name -> what `smartmem_tvm.target.parse_target` takes: this machine's CPU, others that it can stand for, and GPUs."""
_INSTEAD = {
    ("opencl", "schedule"): "",
    ("opencl-texture", "schedule"): "textures",
    ("cuda", "schedule"): "cuda_graph",
}
"""What is switched off on a target in place of a technique that it cannot do without."""
_OWN = os.sep + "smartmem_tvm" + os.sep


@dataclass
class Verdict:
    """What became of a case.

    Attributes
    ----------
    kind : str
        One of the names above.
    cause : str
        What other cases of the same fault have too: place and kind of an error, without numbers and names.
    detail : str
        The message.
    others : str
        Of a wrong result: who else computed what ONNX Runtime did, and who what we did.
    noise : str
        What was printed on the way, as TVM's warnings are.
    loose : float
        The share of numbers that rounding moves too far to say anything.
    """

    kind: str
    cause: str = ""
    detail: str = ""
    others: str = ""
    noise: str = ""
    loose: float = 0.0
    operators: str = ""
    options: str = ""
    nodes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Job:
    """What a worker is given: a seed, or a case that was made in another way."""

    target: str = "llvm"
    seed: int = 0
    limit: int = FULL
    case: Case | None = None
    kind: str = GRAPHS

    def drawn(self) -> Case:
        """The case."""
        return self.case or draw(self.seed, self.limit, self.kind)


def work(job: Job) -> dict:
    """`check` for a worker; a dictionary, which any process can read."""
    start = time.perf_counter()
    case = job.drawn()
    with _heard() as noise:
        verdict = check(case, job.target)
    verdict.noise = " ".join(noise)[:300]
    verdict.operators, verdict.nodes = " ".join(case.operators), len(case.model.graph.node)
    verdict.options, verdict.seconds = " ".join(case.options), round(time.perf_counter() - start, 3)
    return asdict(verdict) | {"drawn": case.drawn}


def prepare(job: Job) -> bool:
    """The part of `work` that is ONNX Runtime's: if this crashes too, it is no fault of ours."""
    with contextlib.suppress(reference.Refused):
        for way in nested.ways(job.drawn()):
            reference.expected(nested.written_out(way))
    return True


def check(case: Case, target: str = "llvm") -> Verdict:
    """Compile a case, run it, compare; every way of its branches that an input decides."""
    found: list[Verdict] = []
    for way in nested.ways(case):
        found.append(_check_way(way, target))
        if found[-1].kind in (*FAULTS, REFUSED) or found[0].kind == NOT_DRAWN:
            return found[-1]
    return next((verdict for verdict in found if verdict.kind == DISPUTED), found[0])


def _check_way(case: Case, target: str) -> Verdict:
    import smartmem_tvm

    try:
        plain = nested.written_out(case)
        expected = reference.expected(plain)
        if plain is not case and faults(case, reference.run(case.model, case.inputs), expected):
            return Verdict(DISPUTED, detail="ONNX Runtime computes something else where branches are written out")
    except reference.Refused as error:
        return Verdict(NOT_DRAWN, detail=str(error))
    loose = float(np.mean([each.loose for each in expected])) if expected else 0.0
    try:
        got = compile_and_run(case, target)
    except smartmem_tvm.UserError as error:
        return Verdict(REFUSED, general(str(error)), str(error), loose=loose)
    except Exception as error:
        return Verdict(INTERNAL, *_place(error), loose=loose)
    if faults(case, got, expected):
        # What a few other roundings did not move, many and coarser ones may.
        expected = reference.expected(plain, runs=40, scale=4.0, optimized=True)
    found = faults(case, got, expected)
    if found and "rewrite" not in case.options and not faults(case, got, [each.where_finite() for each in expected]):
        # The laws of algebra hold for numbers: `inf - inf` is none, and what they make of it may be another.
        without = Case(case.model, case.inputs, {**case.options, "rewrite": False})
        found = faults(case, compile_and_run(without, target), expected)
    if found:
        operators = " ".join(each for each in case.operators if each != "Constant")
        names = [value.name for value in case.model.graph.output]
        results = {name: ([mine], [right]) for name, mine, right in zip(names, got, expected)}
        # Each alone: what another operator of the graph makes of ONNX's own implementation says nothing of this one.
        others = [_others(cut(plain, [name]), *results[name]) for name in found] if "" not in found else ["none"]
        # Where ONNX's own implementation says what we do, and no other what ONNX Runtime does, the fault is its own.
        disputed = all("onnx as we" in each and "as ONNX Runtime" not in each for each in others)
        kind = DISPUTED if disputed else WRONG
        return Verdict(kind, operators, "; ".join(found.values()), "; ".join(others), loose=loose)
    return Verdict(OK, loose=loose)


def compile_and_run(case: Case, target: str) -> list[np.ndarray]:
    """What this package computes."""
    model, options = case.model.SerializeToString(), tuple(sorted(case.options.items()))
    return _compiled(model, options, target).run(*case.inputs.values())


@lru_cache(maxsize=1)
def _compiled(model: bytes, options: tuple, target: str):
    """The last case, which runs several ways."""
    import smartmem_tvm
    from smartmem_tvm.target import parse_target

    given = dict(options)
    off = {_INSTEAD.get((target, name), name) for name, value in given.items() if value is False} - {""}
    asked = {name: value for name, value in given.items() if value is not False}
    profiles = AnyCosts() if "layout" in asked else None
    where = parse_target(TARGETS[target])
    mod = smartmem_tvm.from_onnx(onnx.ModelProto.FromString(model))
    return smartmem_tvm.compile(
        mod, where, smartmem_tvm.Options(**dict.fromkeys(off, False), **asked, profiles=profiles)
    )


class AnyCosts:
    """In place of a profile store: costs drawn by the kernels themselves, so that any layout may be the best."""

    def compare(self, fused: tuple, parts: tuple) -> None:
        """Nothing is known of fusion."""

    def latency(self, func: object) -> None:
        """Nor of single kernels."""

    def form_latency(self, func: object, base: object) -> float:
        """Seconds between 1 and 2, the same for the same kernel."""
        from smartmem_tvm.tune.profile_store import kernel_key

        return 1 + zlib.crc32(kernel_key(func).encode()) / 2**32


def faults(case: Case, got: list[np.ndarray], expected: list[reference.Expected]) -> dict[str, str]:
    """Output -> what is wrong with it."""
    names = [value.name for value in case.model.graph.output]
    if len(got) != len(expected):
        return {"": f"{len(got)} outputs for {len(expected)}"}
    found = {name: right.fault(np.asarray(mine)) for name, mine, right in zip(names, got, expected)}
    return {name: f"{name}: {fault}" for name, fault in found.items() if fault}


def _others(case: Case, got: list[np.ndarray], expected: list[reference.Expected]) -> str:
    """Who agrees with whom."""
    found = []
    for name, run in {"onnx": _reference_evaluator, "tvm": _tvm}.items():
        try:
            theirs = run(case)
        except Exception as error:
            found.append(f"{name} fails ({type(error).__name__})")
            continue
        with_runtime = not faults(case, theirs, expected)
        mine = [reference.Expected(np.asarray(m), e.moved) for m, e in zip(got, expected)]
        with_us = all(m.value.shape == e.value.shape for m, e in zip(mine, expected)) and not faults(case, theirs, mine)
        agrees = {(True, False): "as ONNX Runtime", (False, True): "as we", (True, True): "as both"}
        found.append(f"{name} {agrees.get((with_runtime, with_us), 'as nobody')}")
    return ", ".join(found)


def _reference_evaluator(case: Case) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    return [np.asarray(each) for each in ReferenceEvaluator(case.model).run(None, case.inputs)]


def _tvm(case: Case) -> list[np.ndarray]:
    import tvm

    from smartmem_tvm.deploy.inference_session import to_numpy
    from smartmem_tvm.frontend import from_onnx_as_tvm

    executable = tvm.relax.build(from_onnx_as_tvm(case.model), "llvm")
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(value).reshape(value.shape)) for value in case.inputs.values()]
    return to_numpy(tvm.relax.VirtualMachine(executable, tvm.cpu())["main"](*tensors))


def general(message: str) -> str:
    """A message without what differs from case to case."""
    message = re.sub(r"\(node [^)]*\)|\b[A-Z]\w*_t\d+\b|'[^']*'|\bt\d+\b|\b[xc]\d+\b", "_", message)
    return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", " ".join(message.split()))[:200]


def _place(error: Exception) -> tuple[str, str]:
    """Where an error comes from, in this package, with the last line of its message; and all that it says."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _OWN in f.filename]
    last = f"{frames[-1].filename.split(_OWN)[-1]}:{frames[-1].name}" if frames else "outside"
    line = (str(error).strip().splitlines() or [""])[-1]
    detail = "".join(traceback.format_exception(error)[-6:])[-1500:]
    return f"{last} {type(error).__name__}: {general(line)}", detail


@contextlib.contextmanager
def _heard() -> Iterator[list[str]]:
    """What anybody in this process, in C++ too, writes to stderr meanwhile."""
    lines: list[str] = []
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            lines += file.read(4000).decode(errors="replace").split("\n")
