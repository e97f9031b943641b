# SPDX-License-Identifier: Apache-2.0
"""Weights that are streamed from a file into one arena by a plan: the functions of the library ``stream.so``.

A thread of the library loads while others compute, and no Python runs in between (FlexNN, section 3.4). What the
functions do, with ``stream`` for what ``open`` returns:

- ``open(path, bytes)``: a stream of the file, which must have so many bytes.
- ``load(folder)``: the same of a folder of `deploy.export.save`, with the plan that is in there.
- ``plan(stream, arena_bytes, offsets, loads, names, patience_ms)``: where each tensor lies in the arena, in bytes, and
  what is loaded: for each load six numbers, ``file_offset, bytes, arena_offset, after, step, pinned``, and the name of
  the layer that reads it. A load begins when step ``after`` is done, or at any time for -1; step ``step`` reads it;
  what is pinned (1) is loaded once for all inferences. One thread loads all of it in this order, pinned ones first.
- ``begin(stream)``: an inference; one that was not ended is given up.
- ``tensor(stream, index, shape, dtype)``: a view of the arena at ``offsets[index]``.
- ``weight(stream, load, shape, dtype)``: a view of a load, when it is complete; an error if it failed, or if no byte
  came for `patience_ms`.
- ``rows(stream, offset, count, ids, out)``: of a table of `count` rows at `offset` of the file those that `ids` name,
  into `out`; a row has the bytes of `out` over the number of `ids` (int64).
- ``done(stream, step)``: the step is done, and those before it.
- ``end(stream)``: the inference is over, and the first loads of the next may begin.
- ``timeline(stream)``: of the last inference that ended, in seconds since its beginning: begin and end of the load,
  begin and end of the wait for it, of each load; then when each step was done. Not a number for what did not happen,
  as the load of what was pinned before.
- ``loaded_bytes(stream)``: how much was read of the file since it was opened.
- ``close(stream)``: what else happens when nobody holds the stream any more.

A wrong plan is a ``ValueError``; a file that is missing, was changed or cannot be read is a ``RuntimeError``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import tvm  # noqa: F401  (loads globally what the library leaves open)
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
    """Return where the library is, or would be had it been built."""
    return Path(__file__).resolve().parent.parent / "lib" / "stream.so"


@cache
def functions() -> SimpleNamespace:
    """Open the library, once, and return its functions: one attribute for each of `NAMES`.

    Raises
    ------
    UserError
        If it was not built, or cannot be opened.
    """
    _open(library_path())
    return SimpleNamespace(**{name: tvm_ffi.get_global_func(f"smartmem.stream.{name}") for name in NAMES})


def _open(path: Path) -> ctypes.CDLL:
    # The library was compiled against one TVM; another may crash instead of complaining.
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
