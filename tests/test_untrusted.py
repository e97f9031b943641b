# SPDX-License-Identifier: Apache-2.0
"""Models, records, results and what peers say are data: nothing in the package runs what it reads."""

import ast

from test_architecture import FILES, ROOT

MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "yaml"}
CALLS = {"eval", "exec", "__import__", "os.system", "os.popen", "json.load", "json.loads", "tvm.ir.load_json"}
CALLS |= {"torch.load", "torch.export.load"}  # pickle, and expressions that are evaluated
UNSAFE = {"shell": True, "allow_pickle": True}
ALLOWED = {
    # Between a process and one that it has started itself.
    **{
        key: {"pickle"}
        for key in ("executor/workers.py", "tools/bench/peers/mnn.py", "tools/bench/peers/mnn_worker.py")
    },
    "frontend/forked.py": {"pickle"},
    # A program that the user trusts, as docs/frontend.md says.
    "frontend/torch_file.py": {"torch.export.load"},
    # JSON within limits, and TVM's JSON after a check of it.
    "json_data.py": {"json.loads"},
    "module_file.py": {"tvm.ir.load_json"},
    # What this process, or TVM, has written itself: attributes of modules, the description of types.
    **{key: {"json.loads"} for key in ("graph_report.py", "ir/graph.py", "cli/export_graph.py", "module_check.py")},
    **{key: {"json.loads"} for key in ("deploy/memory_plan.py", "schedule/core/plans.py", "ir/cache_rows.py")},
    **{key: {"json.loads"} for key in ("ir/several_sizes.py", "transform/sizes/repeat_items.py")},
    # Between a process and one that it has started itself.
    "tools/isa/candidates.py": {"json.loads"},
    **{key: {"json.loads"} for key in ("tune/record_lines.py", "tune/parameters.py", "tools/bench/systems.py")},
}


def found(path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {(node.module or "").split(".")[0]} & MODULES
        elif isinstance(node, ast.Call):
            names |= {ast.unparse(node.func)} & CALLS
            names |= {each.arg for each in node.keywords if getattr(each.value, "value", 0) is UNSAFE.get(each.arg, ())}
    return names


def test_nothing_runs_what_it_reads():
    assert len(FILES) > 700
    for path in FILES:
        assert found(path) <= ALLOWED.get(path.as_posix(), set()), path
