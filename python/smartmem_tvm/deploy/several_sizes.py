# SPDX-License-Identifier: Apache-2.0
"""The function of a model of several sizes that takes given inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import UserError, shape_text
from .arguments import Parameter, TensorKind, in_order

_LISTED = 8  # sizes that an error lists
Shape = tuple[int, ...]


class SizeChoice:
    """Chooses a function by the shapes of the inputs.

    Parameters
    ----------
    functions : mapping
        Function of each size -> its inputs, in the order of the sizes; all have the same names.
    """

    def __init__(self, functions: Mapping[str, Sequence[Parameter]]):
        self._names = [param.name for param in next(iter(functions.values()))]
        self._first = next(iter(functions))
        self._functions = {
            tuple(_dims(param) for param in params): name for name, params in reversed(functions.items())
        }

    def __call__(self, inputs: Sequence, named: Mapping[str, object]) -> str:
        """Return the function for inputs, given as to `Runnable.run`.

        Inputs of another number, or of other names, choose the first function, which refuses them.

        Raises
        ------
        UserError
            If no size has the shapes.
        """
        values = in_order(self._names, inputs, named)
        if values is None:
            return self._first
        shapes = tuple(_shape(value) for value in values)
        found = self._functions.get(shapes)
        if found is None:
            raise UserError(
                f"No size of this model takes {self._text(shapes)}; it has {self._listing()}: give one of these, or "
                f"compile the model for this one as well."
            )
        return found

    def _listing(self) -> str:
        sizes = [self._text(shapes) for shapes in reversed(self._functions)]
        more = f" ... {len(sizes) - _LISTED} more" if len(sizes) > _LISTED else ""
        return "; ".join(sizes[:_LISTED]) + more

    def _text(self, shapes: Sequence[Shape]) -> str:
        return ", ".join(f"'{name}' {shape_text(shape)}" for name, shape in zip(self._names, shapes, strict=True))


def _dims(param: Parameter) -> Shape:
    if not isinstance(param.kind, TensorKind) or param.kind.dims is None:
        raise UserError(f"Input '{param.name}' of a model of several sizes is no tensor of known sizes: compile one.")
    return tuple(param.kind.dims)


def _shape(value: object) -> Shape:
    shape = getattr(value, "shape", None)
    if shape is None:
        try:
            shape = np.shape(value)
        except ValueError:  # a ragged list, which `arguments` refuses
            return ()
    return tuple(map(int, shape))
