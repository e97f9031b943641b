# SPDX-License-Identifier: Apache-2.0
"""LLVM optimizes what some cases of a test compile, and not what the others do, which takes half the time.

Each case tests the loops and instructions that this package makes. What LLVM's optimizer does with them depends on the
kind of kernel far more than on the numbers of a case, and each test has a kind of its own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

EVERY = 4  # cases, assumed: LLVM optimizes the first of a test, and each fourth one after it
COMMANDS = "tests/cli/"  # what commands say and write: no case is optimized
_BUILD = "target.build.llvm"  # TVM's code generator, also of the host's part of a kernel for a GPU


def unoptimized_cases(items: Iterable) -> set[str]:
    """Return the ids of pytest's items that compile without LLVM's optimizations.

    Of each test these are all cases but the first and each fourth one after it; of `COMMANDS` all cases. A test that is
    marked `optimized` has none: it reads machine code.
    """
    seen, found = Counter(), set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        chosen = seen[test] % EVERY or test.startswith(COMMANDS)
        if chosen and item.get_closest_marker("optimized") is None:
            found.add(item.nodeid)
        seen[test] += 1
    return found


@contextmanager
def unoptimized() -> Iterator[None]:
    """Let LLVM optimize nothing that this process compiles within the context, whatever a target says."""
    import tvm  # not before conftest.py has named the folders of caches
    import tvm_ffi

    build = tvm.get_global_func(_BUILD)

    def quick(mod, target):
        return build(mod, tvm.target.Target({**target.export(), "opt-level": 0}))

    tvm_ffi.register_global_func(_BUILD, quick, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_BUILD, build, override=True)
