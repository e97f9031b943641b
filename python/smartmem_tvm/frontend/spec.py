# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of a module: names, shapes and dtypes, and the check of arrays against them."""

from collections.abc import Mapping, Sequence

import numpy as np
import tvm

from smartmem_tvm.errors import UserError, shape_text
from smartmem_tvm.ir.mask_positions import LENGTH
from smartmem_tvm.ir.public_functions import input_names
from smartmem_tvm.narrow import INPUT_TYPES, OUTPUT_TYPES, stated_types

Spec = dict[str, tuple[tuple[int, ...], str]]


def with_names(
    mod: tvm.IRModule, inputs: Sequence[str], outputs: Sequence[str], narrow: Mapping[str, str] | None = None
) -> tvm.IRModule:
    """Return the module with the model's own tensor names as attributes of ``main``.

    Relax renames inputs that are not identifiers (``input.1``) and gives outputs no names. `narrow` has the types of
    tensors that the module keeps in bytes (`smartmem_tvm.narrow`).
    """
    attributes = {"input_names": list(inputs), "output_names": list(outputs)}
    for key, names in ((INPUT_TYPES, inputs), (OUTPUT_TYPES, outputs)):
        if narrow and not narrow.keys().isdisjoint(names):
            attributes[key] = [narrow.get(name, "") for name in names]
    mod["main"] = mod["main"].with_attrs(attributes)
    return mod


def input_spec(mod: tvm.IRModule, function: str = "main") -> Spec:
    """Return input name -> (shape, dtype), in the order of the parameters of a function.

    Works for any module with static shapes; a module of another front end has the names of its parameters. The length
    that functions of an open length take is none of them.
    """
    main = mod[function]
    attrs = main.attrs or {}
    count = int(attrs["num_input"]) if "num_input" in attrs else len(main.params)
    params = list(main.params)[:count]
    names, narrow = input_names(main), stated_types(mod, INPUT_TYPES, function) or [""] * count
    return {
        name: (tuple(int(dim) for dim in param.ty.shape), dtype or str(param.ty.dtype.dtype))
        for name, param, dtype in zip(names, params, narrow)
        if name != LENGTH
    }


def output_names(mod: tvm.IRModule, function: str = "main") -> list[str]:
    """Return the names of the results of a function; ``output_0`` ... if the module has none."""
    main = mod[function]
    if main.attrs is not None and "output_names" in main.attrs:
        return [str(name) for name in main.attrs["output_names"]]
    count = len(main.ret_ty.fields) if isinstance(main.ret_ty, tvm.relax.TupleType) else 1
    return [f"output_{index}" for index in range(count)]


def check_inputs(spec: Spec | tvm.IRModule, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Check arrays against the inputs of a module and return them contiguous, in the order of its inputs.

    Parameters
    ----------
    spec
        The result of `input_spec`, or a module.
    arrays
        Input name -> array.

    Raises
    ------
    UserError
        On an unknown name, an input without an array, a wrong shape or a wrong dtype. Arrays are not converted: a
        silent cast would hide the mistake.
    """
    spec = input_spec(spec) if isinstance(spec, tvm.IRModule) else spec
    for wrong in sorted(set(arrays) - set(spec)):
        raise UserError(f"'{wrong}' is no input of the model; its inputs are: {_listing(spec)}.")
    for missing in [name for name in spec if name not in arrays]:
        raise UserError(f"Input '{missing}' has no array; the model's inputs are: {_listing(spec)}.")
    for name, (shape, dtype) in spec.items():
        array = np.asarray(arrays[name])
        if array.shape != tuple(shape):
            raise UserError(
                f"Input '{name}' has shape {shape_text(array.shape)}, but the model takes {shape_text(shape)}; "
                f"give it in that shape or compile the model for yours."
            )
        if str(array.dtype) != dtype:
            raise UserError(
                f"Input '{name}' has dtype {array.dtype}, but the model takes {dtype}; convert it with "
                f"array.astype('{dtype}')."
            )
    return [np.ascontiguousarray(arrays[name]).reshape(shape) for name, (shape, _) in spec.items()]


def _listing(spec: Spec) -> str:
    return ", ".join(f"'{name}' ({shape_text(shape)} {dtype})" for name, (shape, dtype) in spec.items()) or "none"
