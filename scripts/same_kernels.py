#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the kernels of this working tree are those of another revision: the gate before a change of structure.

python scripts/same_kernels.py main                                    # all networks, all targets
python scripts/same_kernels.py main --networks gru,squeezenet --targets haswell,sm_80
python scripts/same_kernels.py main --base-only                        # compute the base's side, for later
python scripts/same_kernels.py main --rewritten WindowProduct          # a rule whose kernels hash otherwise

Each network is compiled for each target as far as code generation: no device is asked. Of each kernel the structural
hash, the rule that scheduled it and what the rule chose are kept in ``.cache/same_kernels/SIDE.jsonl``: SIDE is git's
hash of the folder ``python`` of a revision or of the working tree. An interrupted run goes on where it stopped.
Prints what differs, and ends with exit code 1 if anything does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "same_kernels"

# The quick ones first. The two in brackets are made here, as no file of `models` has a recurrent layer.
NETWORKS = {
    "gru": "(recurrent)",
    "lstm": "(recurrent)",
    **{name: f"models/extra/{name}.onnx" for name in ("squeezenet", "mobilenetv2", "vit_s16")},
    **{name: f"models/{name}.onnx" for name in ("resnext50", "swin_t", "convnext_t", "yolov8n", "regnet")},
    **{name: f"models/extra/{name}.onnx" for name in ("gpt2", "convbert", "ibert")},
    **{name: f"models/{name}.onnx" for name in ("efficientvit_b3", "crossformer_s", "autoformer_s", "conformer")},
    **{name: f"models/{name}.onnx" for name in ("sd_text_encoder", "smt_s", "biformer_s")},
}
_CPU, _CUDA = {"kind": "llvm", "num-cores": 8}, {"kind": "cuda", "thread_warp_size": 32}
_X86 = {**_CPU, "mtriple": "x86_64-linux-gnu"}
_GROUPS = {"max_num_threads": 256, "max_threads_per_block": 256, "max_shared_memory_per_block": 32768}
_BLOCKS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
# Name -> attributes of the target, or the name of a device, and the precision. Tiles of AMX multiply bfloat16 only, and
# the groups of warps of sm_90a no float32.
TARGETS: dict[str, tuple[dict | str, str]] = {
    "haswell": ({**_X86, "mcpu": "haswell"}, "float32"),
    "avx512": ({**_X86, "mcpu": "skylake-avx512"}, "float32"),
    "amx": ({**_X86, "mcpu": "sapphirerapids"}, "bfloat16"),
    "aarch64": ({**_CPU, "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}, "float32"),
    "sm_80": ({**_CUDA, **_BLOCKS, "arch": "sm_80"}, "float32"),
    "sm_90a": ({**_CUDA, **_BLOCKS, "arch": "sm_90a"}, "half"),
    "opencl": ({"kind": "opencl", **_GROUPS}, "float32"),
    "adreno": ("adreno-740", "float32"),
    "adreno-half": ("adreno-740", "half"),
}
_PLAN, _RULE = "smartmem.plan", "smartmem.rule"
# New name of a rule or a decision -> the name in older revisions, by which kernels are compared.
RENAMED = {"Bfloat16Product": "RoundedProduct", "bfloat16_product": "rounded_product"}
Found = dict[tuple[str, str], dict]
"""(network, target) -> what `kernels_of` returned."""


def recurrent(name: str, path: Path) -> Path:
    """Write a network of two layers, ``gru`` in one direction or ``lstm`` in both, 12 steps of 256 numbers."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    operator, gates, directions = {"gru": ("GRU", 3, 1), "lstm": ("LSTM", 4, 2)}[name]
    random, nodes, weights, width, hidden, at = np.random.RandomState(0), [], [], 256, 128, "x"
    for layer in range(2):
        shapes = {"w": (directions, gates * hidden, width), "r": (directions, gates * hidden, hidden)}
        for key, shape in {**shapes, "b": (directions, 2 * gates * hidden)}.items():
            drawn = (random.randn(*shape) * 0.1).astype("float32")
            weights.append(numpy_helper.from_array(drawn, f"{key}{layer}"))
        direction = "bidirectional" if directions == 2 else "forward"
        inputs = [at, f"w{layer}", f"r{layer}", f"b{layer}"]
        nodes.append(helper.make_node(operator, inputs, [f"a{layer}"], hidden_size=hidden, direction=direction))
        nodes.append(helper.make_node("Transpose", [f"a{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]))
        weights.append(numpy_helper.from_array(np.array([0, 0, -1]), f"s{layer}"))
        nodes.append(helper.make_node("Reshape", [f"t{layer}", f"s{layer}"], [f"y{layer}"]))
        width, at = directions * hidden, f"y{layer}"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (12, 2, 256))
    result = helper.make_tensor_value_info(at, TensorProto.FLOAT, (12, 2, width))
    graph = helper.make_graph(nodes, name, [given], [result], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def imported(name: str):
    """The module of a network; its front end is that of the revision at hand."""
    from smartmem_tvm import from_onnx

    if NETWORKS[name] != "(recurrent)":
        return from_onnx(ROOT / NETWORKS[name])
    with tempfile.TemporaryDirectory() as folder:
        return from_onnx(recurrent(name, Path(folder, f"{name}.onnx")))


def kernels_of(mod, target_name: str) -> dict:
    """Compile a module as far as code generation.

    Returns
    -------
    dict
        ``launches``, of one inference, and ``kernels``: name -> ``hash``, ``rule`` and ``choices``; or only ``error``,
        what the compiler said where it refused the network.
    """
    import tvm
    import tvm_ffi

    from smartmem_tvm import Options, graph_cost, optimize
    from smartmem_tvm.deploy.build import lower
    from smartmem_tvm.target import parse_target

    attributes, precision = TARGETS[target_name]
    target = parse_target(attributes if isinstance(attributes, str) else json.dumps(attributes))
    options = Options(precision=precision)
    try:
        with target, choices() as chosen:
            graph = optimize(mod, options=options)
            lowered = lower(graph, target, options)
            lowered = lowered[0] if isinstance(lowered, tuple) else lowered.module  # a tuple until 2026-11-28
    except (AttributeError, ImportError, NameError, TypeError):
        raise  # a mistake here or there
    except Exception as error:  # of many kinds; a refusal is a result as well
        return {"error": f"{type(error).__name__}: {str(error)[-300:]}"}
    kernels = {}
    for gvar, func in lowered.functions_items():
        if isinstance(func, tvm.tirx.PrimFunc):
            kept = (func.attrs or {}).get(_PLAN)
            for name in ("global_symbol", _PLAN):  # its name, and how it came to be what it is
                func = func.without_attr(name) if name in (func.attrs or {}) else func
            rule = (func.attrs or {}).get(_RULE)
            if rule is not None:
                rule = {**rule, "name": _older(str(rule["name"]))}
                func = func.with_attr(_RULE, rule)
            values = chosen.get(gvar.name_hint, {}) if kept is None else _values(json.loads(str(kept)))
            kernels[gvar.name_hint] = {
                "hash": f"{tvm_ffi.structural_hash(func, map_free_vars=True) & (2**64 - 1):016x}",
                "rule": str(rule["name"]) if rule is not None else "-",
                "choices": {_older(key): value for key, value in values.items()},
            }
    return {"launches": graph_cost(graph).kernels, "kernels": kernels}


def _older(name: str) -> str:
    """A name with the parts that are in `RENAMED` as they were; a rule that names several is ``A + B``."""
    return re.sub(r"\w+", lambda found: RENAMED.get(found[0], found[0]), name)


def _values(plan: dict) -> dict[str, int]:
    """What was decided, by the names of decisions and fields, as revisions note it that keep no plans."""
    decided = plan["chosen"]["decisions"] if plan["chosen"] is not None else {}
    return {f"{name}.{field}": value for name, fields in decided.items() for field, value in fields.items()}


@contextmanager
def choices() -> Iterator[dict[str, dict]]:
    """Within the context, what rules choose is noted: name of a kernel -> values by the names of decisions.

    Only for revisions whose kernels do not keep their plans. The pass asks for the target first, lets each rule decide,
    and notes the one that answered.
    """
    from smartmem_tvm.schedule import schedule_kernels as module
    from smartmem_tvm.schedule.core.decisions import given_values

    if not hasattr(module, "record_of"):
        yield {}
        return
    noted, at, own = {}, {}, {name: getattr(module, name) for name in ("target_of", "deciding", "record_of")}

    def target_of(func, name):
        at["kernel"] = name
        return own["target_of"](func, name)

    @contextmanager
    def deciding(func):
        with own["deciding"](func) as taken:
            at["taken"] = taken
            yield taken

    def record_of(rule, schedule):
        noted[at["kernel"]] = {key: int(value) for key, value in given_values(at["taken"]).items()}
        return own["record_of"](rule, schedule)

    for each in (target_of, deciding, record_of):
        setattr(module, each.__name__, each)
    try:
        yield noted
    finally:
        for name, each in own.items():
            setattr(module, name, each)


def compute(name: str, targets: list[str], into: Path) -> None:
    """Append a line to a file for each target: the part of a process that has one revision in its PYTHONPATH."""
    mod = imported(name)
    for target in targets:
        start = time.perf_counter()
        row = {"network": name, "target": target, **kernels_of(mod, target)}
        row["seconds"] = round(time.perf_counter() - start, 1)
        with into.open("a") as file:
            file.write(json.dumps(row) + "\n")
        said = row.get("error") or f"{len(row['kernels'])} kernels, {row['seconds']} s"
        print(f"{into.stem[:8]} {name} {target}: {said}", file=sys.stderr, flush=True)


def git(*args: str, **environment: str) -> str:
    """What a command of git prints."""
    command = ["git", "-C", str(ROOT), *args]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment}).stdout


def tree_of(revision: str | None) -> str:
    """The hash of the folder ``python`` of a revision; of the working tree, new files too, for None."""
    if revision is not None:
        return git("rev-parse", f"{revision}:python").strip()
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        git("read-tree", "HEAD", **index)
        git("add", "-A", "python", **index)
        tree = git("write-tree", **index).strip()
    return tree_of(tree)


def read(path: Path) -> Found:
    """What is known of a side; the last line of an interrupted run may be half a line."""
    found: Found = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found[row["network"], row["target"]] = row
    return found


def fill(tree: str, networks: list[str], targets: list[str], jobs: int) -> Found:
    """Compute what is missing of a side, in processes that see its files and no others."""
    CACHE.mkdir(parents=True, exist_ok=True)
    into = CACHE / f"{tree}.jsonl"
    known = read(into)
    missing = {name: [each for each in targets if (name, each) not in known] for name in networks}
    missing = {name: left for name, left in missing.items() if left}
    if missing:
        with tempfile.TemporaryDirectory(prefix="same-kernels-") as folder, ThreadPoolExecutor(jobs) as pool:
            files = subprocess.run(["git", "-C", str(ROOT), "archive", tree], check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], check=True, input=files)
            library = ROOT / "python" / "smartmem_tvm" / "lib"
            if library.is_dir():
                shutil.copytree(library, Path(folder, "smartmem_tvm", "lib"))
            asked = [pool.submit(_child, folder, name, left, into) for name, left in missing.items()]
            broken = [each for each in asked if each.result()]
        if broken:
            raise SystemExit(f"{len(broken)} of {len(asked)} networks ended before their last target: run it again.")
    return read(into)


def _child(folder: str, name: str, targets: list[str], into: Path) -> int:
    command = [sys.executable, __file__, "--compute", name, "--targets", ",".join(targets), "--into", str(into)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": folder}, cwd=folder).returncode


def differences(before: dict, after: dict) -> list[str]:
    """What differs between two rows of one network and target; a kernel that only has another name does not."""
    lines = [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in ("error", "launches")
        if before.get(key) != after.get(key)
    ]
    olds, news = before.get("kernels", {}), after.get("kernels", {})
    old_left, new_left = _less(olds, news), _less(news, olds)
    for name in sorted({*old_left, *new_left}):
        old, new = olds.get(name) if name in old_left else None, news.get(name) if name in new_left else None
        if old is None or new is None:
            each, what = (new, "new") if old is None else (old, "gone")
            lines.append(f"{name}: {what}, {each['rule']} {each['hash']}")
            continue
        changed = [f"{key} {old[key]} -> {new[key]}" for key in ("rule", "hash") if old[key] != new[key]]
        keys = sorted({*old["choices"], *new["choices"]})
        pairs = [(key, old["choices"].get(key), new["choices"].get(key)) for key in keys]
        changed += [f"{key} {a} -> {b}" for key, a, b in pairs if a != b]
        lines.append(
            f"{name}: {', '.join(changed)}" if changed else f"{name}: as many kernels like it as before are not there"
        )
    return lines


def without_hashes(row: dict, rules: set[str]) -> dict:
    """A row in which the kernels of some rules have no hash: their rule and its choices are compared, and no more."""

    def less(kernel: dict) -> dict:
        return {**kernel, "hash": "-"} if rules & set(re.findall(r"\w+", kernel["rule"])) else kernel

    return {**row, "kernels": {name: less(each) for name, each in row.get("kernels", {}).items()}}


def _less(kernels: dict[str, dict], others: dict[str, dict]) -> list[str]:
    """The names of kernels that have no counterpart among `others`; one of the same name first."""

    def key(kernel: dict) -> str:
        return json.dumps(kernel, sort_keys=True)

    free = Counter(key(each) for each in others.values())
    same = [name for name, each in kernels.items() if name in others and key(each) == key(others[name])]
    free.subtract(key(kernels[name]) for name in same)
    left = []
    for name in (each for each in kernels if each not in set(same)):
        if free[key(kernels[name])] > 0:
            free[key(kernels[name])] -= 1
        else:
            left.append(name)
    return left


def chosen(text: str | None, known: dict) -> list[str]:
    """Names of a list with commas; all for none.

    Raises
    ------
    SystemExit
        If one of them is not known.
    """
    names = [each for each in (text or "").split(",") if each] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: not among {', '.join(known)}")
    return names


def main() -> int:
    """Compute what is missing on both sides, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", nargs="?", default="main", help="a revision of git")
    parser.add_argument("--networks", help="names with commas; all by default")
    parser.add_argument("--targets", help="names with commas; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="networks at a time")
    parser.add_argument("--rewritten", default="", help="rules, with commas, whose hashes are not compared")
    parser.add_argument("--base-only", action="store_true", help="compute the base's side and compare nothing")
    parser.add_argument("--compute", metavar="NETWORK", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    networks, targets = chosen(args.networks, NETWORKS), chosen(args.targets, TARGETS)
    if args.compute:
        compute(args.compute, targets, args.into)
        return 0
    before = fill(tree_of(args.base), networks, targets, args.jobs)
    if args.base_only:
        return 0
    after = fill(tree_of(None), networks, targets, args.jobs)
    rewritten = {each for each in args.rewritten.split(",") if each}
    different = hidden = 0
    for key in ((name, target) for name in networks for target in targets):
        sides = [without_hashes(side[key], rewritten) for side in (before, after)]
        found = differences(*sides)
        hidden += len(differences(before[key], after[key])) - len(found)
        different += len(found)
        for line in found:
            print(f"{key[0]} {key[1]} {line}")
    if rewritten:
        print(f"{', '.join(sorted(rewritten))}: {hidden} kernels whose hash alone differs")
    kernels = sum(len(after[name, target].get("kernels", {})) for name in networks for target in targets)
    print(f"{len(networks)} networks, {len(targets)} targets, {kernels} kernels: {different or 'no'} differences")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
