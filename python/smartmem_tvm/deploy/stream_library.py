# SPDX-License-Identifier: Apache-2.0
"""The functions of the library ``stream.so``, which streams weights from a file into one arena by a plan.

A thread of the library loads while others compute, and no Python runs in between (FlexNN, section 3.4). The functions
are, with ``stream`` for the result of ``open``:

- ``open(path, bytes)``: open a stream of the file, which must have that many bytes.
- ``load(folder)``: open the stream of a folder of `deploy.export.save`, with the plan in the folder.
- ``plan(stream, arena_bytes, offsets, loads, names, patience_ms)``: set the plan: the offset of each tensor in the
  arena, in bytes, and the loads. A load is six numbers, ``file_offset, bytes, arena_offset, after, step, pinned``, and
  the name of the layer that reads it. It begins when step ``after`` is done, or at any time for -1; step ``step`` reads
  it; a pinned one (1) is loaded once for all inferences. One thread makes the loads in this order, pinned ones first.
- ``begin(stream)``: begin an inference; an unfinished one is abandoned.
- ``tensor(stream, index, shape, dtype)``: return a view of the arena at ``offsets[index]``.
- ``weight(stream, load, shape, dtype)``: wait for a load, and return a view of it; an error if it failed, or if no byte
  came for `patience_ms`.
- ``rows(stream, offset, count, ids, out)``: read the rows `ids` (int64) of a table of `count` rows, at `offset` of the
  file, into `out`; a row has the bytes of `out` divided by the number of `ids`.
- ``done(stream, step)``: report that the step is done, and all steps before it.
- ``end(stream)``: end the inference; the first loads of the next one may begin.
- ``timeline(stream)``: return the times of the last complete inference, in seconds since its beginning: for each load,
  begin and end of the load, and begin and end of the wait for it; then the end of each step. NaN stands for events that
  did not happen, as the load of a weight that was already pinned.
- ``loaded_bytes(stream)``: return the bytes read from the file since it was opened.
- ``close(stream)``: close the stream, which otherwise happens when its last reference goes.

A wrong plan is a ``ValueError``; a file that is missing, was changed or cannot be read is a ``RuntimeError``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import tvm  # noqa: F401  (loads the symbols that the library leaves undefined, globally)
import tvm_ffi

from .. import _version
from ..errors import UserError

NAMES = (
    "open",
    "load",
    "plan",
    "begin",
    "tensor",
    "weight",
    "rows",
    "done",
    "end",
    "timeline",
    "loaded_bytes",
    "close",
)
_REMEDY = "run `python native/build.py` in its checkout, or reinstall smartmem-tvm where there is a C++ compiler"


def library_path() -> Path:
    """Return the path of the library, whether it was built or not."""
    return Path(__file__).resolve().parent.parent / "lib" / "stream.so"


@cache
def functions() -> SimpleNamespace:
    """Open the library, once, and return its functions: one attribute for each of `NAMES`.

    Raises
    ------
    UserError
        If the library was not built, or cannot be opened.
    """
    _open(library_path())
    return SimpleNamespace(**{name: tvm_ffi.get_global_func(f"smartmem.stream.{name}") for name in NAMES})


def _open(path: Path) -> ctypes.CDLL:
    # The library was compiled against one version of TVM; with another version it may crash without a message.
    if wrong := _version.version_problem():
        raise UserError(wrong)
    reason = path.with_suffix(".txt")
    if not path.exists():
        why = f" ({reason.read_text(encoding='utf-8').strip()})" if reason.exists() else ""
        raise UserError(f"weights are streamed by the library {path}, which was not built{why}: {_REMEDY}.")
    try:
        return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        message = f"weights are streamed by the library {path}, which does not load ({error}): {_REMEDY}."
        raise UserError(message) from error
