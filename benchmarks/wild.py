#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compile ONNX files that ship inside of PyPI packages (wild_files.json): right or refused, and beside ONNX Runtime.

python benchmarks/wild.py                         # benchmarks/wild.json (`make wild`); goes on where it stopped
python benchmarks/wild.py silero-vad magika       # the files of these packages
python benchmarks/wild.py --failed                # again what is not right
python benchmarks/wild.py --no-times              # what is right and what is refused
python benchmarks/render.py wild                  # and from it the table of docs/wild.md

pip installs each package without its dependencies into a folder of its own below --cache; nothing of it is imported,
only its ONNX files are read. A file that is refused, crashes or hangs is a row with its reason and stops nothing. The
exit code is 2 if a file of this call is wrong, crashes, hangs or ends in an internal error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import onnx
from wild_inputs import sizes_of

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.json_data import fits, plain, read
from smartmem_tvm.tools.bench.child import ending
from smartmem_tvm.tools.bench.machine_facts import machine
from smartmem_tvm.tools.bench.results import Results, rounded
from smartmem_tvm.tune.host import usable_cores
from smartmem_tvm.whole_file import check_output

HERE = Path(__file__).resolve().parent
TABLE, RESULTS = HERE / "wild_files.json", HERE / "wild.json"
FAULTS = ("wrong", "wrong input", "internal error", "crash", "hang")
TOLERANCE, TOLERANCE_OF_HALVES, TOLERANCE_OF_BYTES = 1e-4, 1e-2, 1e-3
"""Of an output's largest value, as `smartmem verify` has it: in float32, in half, and with sums of rounded bytes."""
_FILE = {"file": str, "inputs": dict, "values?": dict, "tolerance?": float}
_PACKAGE = {"package": str, "version": str, "what": str, "files": [_FILE]}
_CONTROL = ("If", "Loop", "Scan")


@dataclass(frozen=True)
class WildFile:
    """A file of the table.

    Attributes
    ----------
    package, version, what : str
        Where it comes from and what it is for.
    file : str
        Below the folder that the package is installed in.
    inputs : dict
        Name -> what it is fed with, see `wild_inputs`.
    values : dict
        Name -> the value that an input has when the file is compiled.
    tolerance : float or None
        Of an output's largest value, where the numbers of the file do not say it.
    """

    package: str
    version: str
    what: str
    file: str
    inputs: dict[str, str]
    values: dict[str, float] = field(default_factory=dict)
    tolerance: float | None = None

    @property
    def key(self) -> str:
        """Its name in results."""
        sizes = len(sizes_of(self.inputs, self.file))
        return f"{self.package}/{Path(self.file).name}" + (f" ({sizes} sizes)" if sizes > 1 else "")


def main() -> int:
    """Take the files that are not in the results yet, one after the other; each is written as soon as it is done."""
    args = arguments()
    try:
        check_output(args.output)
        results = Results(args.output)
        wanted = chosen(files(args.table), args.packages)
    except UserError as error:
        print(f"wild.py: {error}", file=sys.stderr)
        return UserError.EXIT_CODE
    left = [each for each in wanted if args.again or waits(results.rows.get(each.key), args)]
    bad = 0
    for number, each in enumerate(left, start=1):
        row = taken(each, args)
        results.add(rounded(plain(row)))
        bad += row["verdict"] in FAULTS
        print(f"[{number}/{len(left)}] {each.key}: {line(row)}", flush=True)
    return UserError.EXIT_CODE if bad else 0


def arguments() -> argparse.Namespace:
    """What the command is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="by name (default: all)")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--table", type=Path, default=TABLE, metavar="FILE", help="files, as wild_files.json")
    parser.add_argument("--cache", type=Path, default=HERE.parent / ".wild", metavar="DIR", help="where pip installs")
    parser.add_argument("--no-times", dest="times", action="store_false", help="only what is right, and the counts")
    parser.add_argument("--threads", type=int, default=1, help="of both (default: 1)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="for one file")
    parser.add_argument("--memory", type=float, default=8.0, metavar="GB", help="of one file (default: 8)")
    parser.add_argument("--failed", action="store_true", help="also take again what is not right")
    parser.add_argument("--again", action="store_true", help="take all again")
    args = parser.parse_args()
    if args.threads < 1 or args.timeout <= 0 or args.memory <= 0:
        parser.error("--threads is at least 1, --timeout and --memory more than 0")
    return args


def files(path: Path = TABLE) -> list[WildFile]:
    """The table.

    Raises
    ------
    UserError
        If it is no such table.
    """
    try:
        packages = read(path)
    except (OSError, ValueError) as error:
        raise UserError(f"The table of files {path} cannot be read ({error}); give a JSON list.") from error
    if not fits(packages, [_PACKAGE]):
        raise UserError(f"{path} is no list of packages; each has {', '.join(_PACKAGE)}, each file {', '.join(_FILE)}.")
    found = [
        WildFile(each["package"], each["version"], each["what"], **{"values": {}, **entry})
        for each in packages
        for entry in each["files"]
    ]
    for each in found:
        sizes_of(each.inputs, each.key)
    if twice := [key for key, count in Counter(each.key for each in found).items() if count > 1]:
        raise UserError(f"{path} has two files {twice[0]}; leave one out.")
    return found


def chosen(known: list[WildFile], packages: list[str]) -> list[WildFile]:
    """The files of the named packages, all of them if none is named.

    Raises
    ------
    UserError
        If the table has no such package.
    """
    names = {each.package for each in known}
    if missing := [each for each in packages if each not in names]:
        raise UserError(f"The table has no package '{missing[0]}'; it has {', '.join(sorted(names))}.")
    return [each for each in known if not packages or each.package in packages]


def waits(row: dict | None, args: argparse.Namespace) -> bool:
    """Whether a file is still to be taken."""
    if row is None or (args.failed and row["verdict"] != "right"):
        return True
    return args.times and row["verdict"] == "right" and "latency" not in row


def taken(each: WildFile, args: argparse.Namespace) -> dict:
    """The row of a file."""
    row = {"model": each.key, "name": each.key, "package": each.package, "version": each.version, "what": each.what}
    row |= {"date": date.today().isoformat(), "machine": machine(usable_cores()), "threads": args.threads}
    try:
        path = installed(each, args.cache) / each.file
        row |= described(path)
    except (UserError, OSError) as error:
        return {**row, "verdict": "not there", "sentence": str(error)}
    request = {"path": str(path), "file": each.key, "inputs": each.inputs, "values": each.values}
    request |= {
        "memory": int(args.memory * 1e9),
        "threads": args.threads,
        "times": args.times,
        "tolerance": each.tolerance or tolerance(row["odd"]),
    }
    return row | in_child(request, args.timeout)


def tolerance(odd: list[str]) -> float:
    """What the numbers of a file allow."""
    if "half" in odd:
        return TOLERANCE_OF_HALVES
    return TOLERANCE_OF_BYTES if "quantised" in odd else TOLERANCE


def installed(each: WildFile, cache: Path) -> Path:
    """The folder with a package, which pip fills the first time.

    Raises
    ------
    UserError
        If pip cannot.
    """
    place = cache / f"{each.package}-{each.version}"
    if not (place / each.file).exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--upgrade"]
        command += ["--disable-pip-version-check", "--target", str(place), f"{each.package}=={each.version}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or not (place / each.file).exists():
            said = (done.stderr.strip().splitlines() or ["it has no such file"])[-1]
            raise UserError(f"{each.package} {each.version} does not bring {each.file}: {said}.")
    return place


def described(path: Path) -> dict:
    """What a file is: its size, opset and nodes, and what is unusual about it."""
    proto = onnx.load(path, load_external_data=False)
    opset = max((each.version for each in proto.opset_import if each.domain in ("", "ai.onnx")), default=0)
    nodes = list(walk.nodes(proto.graph))
    return {"bytes": path.stat().st_size, "opset": opset, "nodes": len(nodes), "odd": list(_oddities(proto, nodes))}


def _oddities(proto: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> Iterator[str]:
    weights = {each.name for each in proto.graph.initializer}
    inputs = [each for each in proto.graph.input if each.name not in weights]
    sizes = [dim for each in inputs for dim in each.type.tensor_type.shape.dim if not dim.dim_value > 0]
    if any(dim.dim_param in ("?", "") for dim in sizes):
        yield "sizes without a name"
    elif sizes:
        yield "open sizes"
    kinds = {node.op_type for node in nodes}
    if control := [kind for kind in _CONTROL if kind in kinds]:
        yield " and ".join(control)
    if recurrent := [kind for kind in ("LSTM", "GRU", "RNN") if kind in kinds]:
        yield " and ".join(recurrent)
    if any("Quantize" in kind or kind.endswith("Integer") or kind.startswith("QLinear") for kind in kinds):
        yield "quantised"
    if other := sorted({f"{node.domain}.{node.op_type}" for node in nodes if node.domain not in ("", "ai.onnx")}):
        yield ", ".join(other)
    if len(inputs) and any(not each.type.tensor_type.HasField("shape") for each in proto.graph.output):
        yield "outputs without a shape"
    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    if any(each.data_type in halves for each in proto.graph.initializer):
        yield "half"


def in_child(request: dict, timeout: float) -> dict:
    """What a process of its own finds; how it ended, if it did not end well."""
    with tempfile.TemporaryDirectory(prefix="smartmem-wild-") as name:
        ask, answer = Path(name) / "request.json", Path(name) / "row.json"
        ask.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, str(HERE / "wild_child.py"), str(ask), str(answer)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"verdict": "hang", "sentence": f"not done after {timeout:.0f} s"}
        row = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {}
        if done.returncode:
            stage = row.get("stage", "start")
            said = (done.stderr.strip().splitlines() or [""])[-1][:200] if done.returncode > 0 else ""
            return {**row, "verdict": "crash", "sentence": f"at {stage}: the process {ending(done.returncode)} {said}"}
    return row


def line(row: dict) -> str:
    """A row for people."""
    text = row["verdict"]
    if "deviation" in row:
        text += f" ({row['deviation']:.1e}), {row['kernels']} kernels" if row["deviation"] is not None else ""
    if "sentence" in row:
        text += f": {row['sentence']}"
    if "seconds" in row:
        text += f", {sum(row['seconds'].values()):.1f} s to compile"
    if "latency" in row:
        ours, theirs = (row["latency"][name]["median"] for name in ("smartmem", "onnxruntime"))
        text += f", {ours:.3f} ms, {ours / theirs:.2f}x of ONNX Runtime's"
    return text


if __name__ == "__main__":
    sys.exit(main())
