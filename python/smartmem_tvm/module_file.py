# SPDX-License-Identifier: Apache-2.0
"""Relax modules as files: TVMScript for people, JSON for programs.

TVM's JSON holds all constants, as text. Here a `light.Recipe` replaces the numbers of large floating-point constants;
when the file is read, numbers of the same mean, spread and bounds are drawn from it. Everything else is restored
exactly.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst
from tvm.script import from_source

from . import json_data
from .errors import UserError
from .ir.walk import collect
from .light import Recipe
from .module_check import check_module_json
from .whole_file import whole

_Change = Callable[[tvm.runtime.Tensor, tvm.ir.Type], tvm.runtime.Tensor | None]
KEPT = 4096  # bytes; constants up to this size are stored number by number
_DRAWN = ("float16", "float32", "float64")


def module_text(mod: tvm.IRModule) -> str:
    """Return a module as TVMScript, with constants by index instead of value."""
    return mod.script(show_meta=False)


def write_module(mod: tvm.IRModule, path: Path) -> None:
    """Write a module: TVMScript if the name ends in ``.py``, otherwise JSON.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
    text = module_text(mod) if path.suffix == ".py" else tvm.ir.save_json(_mapped(mod, _without_numbers))
    with whole(path) as file:
        file.write_text(text, encoding="utf-8")


def read_module(path: Path) -> tvm.IRModule:
    """Read a module: ``.json`` as `write_module` writes it, or ``.py``, TVMScript, expressions in which are evaluated.

    Raises
    ------
    UserError
        If the file cannot be read or holds no module of this TVM.
    """
    try:
        if path.exists() and (not path.is_file() or path.stat().st_size > json_data.MOST_BYTES):
            raise OSError(0, f"no file of at most {json_data.MOST_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise UserError(f"{path} cannot be read ({reason}); give a module that `--dump-dir` wrote.") from error
    try:
        mod = _from_script(text) if path.suffix == ".py" else _from_json(text)
    except UserError as error:
        raise UserError(f"{path} {error}") from error
    except Exception as error:  # of many kinds, from TVM's parser and from what a script does
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].removeprefix("error: ")
        raise UserError(f"{path} holds no module ({reason}); give a .json file that `--dump-dir` wrote.") from error
    if not isinstance(mod, tvm.IRModule):
        raise UserError(f"{path} holds a {type(mod).__name__}, which is not a module; give a module in TVMScript.")
    return mod


def _from_script(text: str) -> tvm.IRModule:
    # TVM's parser predefines T, R and I, and accepts only classes and functions in a file.
    return from_source(re.sub(r"^(?=(from|import) tvm\b)", "# ", text, flags=re.MULTILINE))


def _from_json(text: str) -> tvm.IRModule:
    check_module_json(text)
    return _mapped(tvm.ir.load_json(text), _with_numbers)


def _mapped(mod: tvm.IRModule, change: _Change) -> tvm.IRModule:
    """Return the module with changed tensors in constants; constants and calls that share objects still do."""
    functions = {name: func for name, func in mod.functions_items() if isinstance(func, relax.Function)}
    constants = [each for func in functions.values() for each in collect(func, GenericConst)]
    tensors = {each.value: each.ty for each in constants if isinstance(each.value, tvm.runtime.Tensor)}
    changed = {tensor: change(tensor, ty) for tensor, ty in tensors.items()}
    other = [each for each in constants if changed.get(each.value) is not None]
    new = {each: GenericConst(changed[each.value], each.ty) for each in other}

    result = mod.clone()
    for name, func in functions.items():
        result.update_func(name, tvm_ffi.structural_map(func, (GenericConst, lambda each: new.get(each, each))))
    return result


def _without_numbers(tensor: tvm.runtime.Tensor, ty: tvm.ir.Type) -> tvm.runtime.Tensor | None:
    """Return a recipe for a large constant, None for one that is kept."""
    if _drawn_shape(ty) is None:
        return None
    values = np.ascontiguousarray(np.from_dlpack(tensor))
    if not np.isfinite(values).all():
        return None
    recipe = replace(Recipe.of(values, ""), seed=zlib.crc32(values))
    return tvm.runtime.tensor(np.array(astuple(recipe), "float64"))


def _with_numbers(tensor: tvm.runtime.Tensor, ty: tvm.ir.Type) -> tvm.runtime.Tensor | None:
    """Return drawn numbers for a recipe, None for any other constant."""
    shape = _drawn_shape(ty)
    if shape is None or tuple(tensor.shape) == shape:
        return None
    *bounds, seed = np.from_dlpack(tensor).tolist()
    return tvm.runtime.tensor(Recipe(*bounds, int(seed)).draw(shape).astype(str(ty.dtype)))


def _drawn_shape(ty: tvm.ir.Type) -> tuple[int, ...] | None:
    """Return the shape of a large floating-point constant, None for any other."""
    if not isinstance(ty, relax.TensorType) or str(ty.dtype) not in _DRAWN:
        return None
    shape = tuple(int(size) for size in ty.shape)
    return shape if math.prod(shape) * np.dtype(str(ty.dtype)).itemsize > KEPT else None
