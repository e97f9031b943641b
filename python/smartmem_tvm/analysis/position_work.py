# SPDX-License-Identifier: Apache-2.0
"""The facts that `positions` finds: where positions lie in each tensor, and which masks each operator needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import ir, relax

from ..ir.graph import CALL_TIR
from ..ir.kernel import Kernel
from ..ir.mask_positions import Counted, Extent
from .items import Mixed, Share, bindings_of, require_same_graph
from .position_constants import is_one_number
from .position_loops import Shares

Numbers = Sequence[Extent]
"""Numbers of positions that a tensor may have."""
_PLAIN = (Extent(),)


@dataclass(frozen=True)
class Need:
    """What an operator needs of an operand behind the length.

    Attributes
    ----------
    operand : int
        Place in `operands` of the operator.
    axis : int
    fill : str
        `ZERO`, `LOWEST` or `HIGHEST`.
    factor : bool
        The operand is a factor of a product with another operand that is zero there: finite numbers are enough.
    """

    operand: int
    axis: int
    fill: str
    factor: bool = False


@dataclass
class OperatorWork:
    """What one operator does along the positions.

    Attributes
    ----------
    name : str
    shares : Shares or list
        Of its result; a list for a tuple.
    needs : list of Need
    kept : dict
        (operand, axis) -> axis of the result at whose position it is read, and nowhere else.
    reads : list
        Shares of each operand.
    scaled : list of Share
        Of those axes of the first operand over which the result is a mean: it lacks the factor of capacity to length.
    zero : set of int
        Axes along which the result is zero behind the length, if the needs are met.
    counted : dict
        Operand that is a constant of one number -> how that follows from the length.
    last : dict
        Of a slice: axis along which it reads the last positions -> their extent, and how many elements it reads.
    loops : callable
        Returns its loops at both lengths, or raises `Mixed` or `Opaque`; none if it adds nothing up along the
        positions, or is a window.
    shapes : callable
        Returns the shapes of its operands and its result at both lengths.
    """

    name: str
    shares: Shares | list = ()
    needs: list[Need] = field(default_factory=list)
    kept: dict[tuple[int, int], int] = field(default_factory=dict)
    reads: list = field(default_factory=list)
    scaled: list[Share] = field(default_factory=list)
    zero: set[int] = field(default_factory=set)
    counted: dict[int, Counted] = field(default_factory=dict)
    last: dict[int, tuple[Extent, int]] = field(default_factory=dict)
    loops: Callable[[], list[tuple[Kernel, Kernel]]] = list
    shapes: Callable[[], list[tuple[tuple, tuple]]] = list


@dataclass
class LengthWork:
    """The facts about a model whose first positions do not depend on its length.

    Attributes
    ----------
    inputs, outputs : list of Shares
    operators : list of OperatorWork
        Of each binding, in order.
    """

    inputs: list[Shares]
    outputs: list[Shares]
    operators: list[OperatorWork]

    @property
    def numbers(self) -> list[Extent]:
        """The numbers of positions that tensors have."""
        return distinct([Extent(), *numbers_of([each.shares for each in self.operators])])

    def fits(self, mod: tvm.IRModule, other: tvm.IRModule, lengths: tuple[int, int]) -> bool:
        """Whether each result of the model has, at two lengths, the positions that are known of it, and no others."""
        bindings = zip(bindings_of(mod), bindings_of(other), self.operators, strict=True)
        return all(
            has_sizes(one.var.ty, found.shares, lengths[0]) and _differ_in(one.var.ty, two.var.ty, found.shares)
            for one, two, found in bindings
        )


def _differ_in(ty, other, shares) -> bool:
    """Whether two types differ in the dimensions with positions only."""
    if isinstance(ty, relax.TupleType):
        return all(_differ_in(*each) for each in zip(ty.fields, other.fields, shares, strict=True))
    along = {share.axis for share in shares}
    pairs = zip(array_shape(ty), array_shape(other), strict=True)
    return all(a == b or axis in along for axis, (a, b) in enumerate(pairs))


def has_sizes(ty, shares, length: int) -> bool:
    """Whether a tensor, or each of a tuple, has the positions that are known of it at a length."""
    if isinstance(ty, relax.TupleType):
        return all(has_sizes(*pair, length) for pair in zip(ty.fields, shares, strict=True))
    return all(array_shape(ty)[share.axis] == share.extent.of(length) for share in shares)


def numbers_of(shares) -> list[Extent]:
    """Return the numbers of positions of a tensor, or of all of a tuple."""
    if isinstance(shares, list):
        return [number for each in shares for number in numbers_of(each)]
    return [share.extent.of_one for share in shares]


def distinct(numbers: Numbers) -> list[Extent]:
    """Return numbers of positions, each once."""
    return list(dict.fromkeys(numbers))


def shares_of(
    small: Sequence[int], large: Sequence[int], lengths: tuple[int, int], what: str, numbers: Numbers = _PLAIN
) -> Shares:
    """Return where the positions of a tensor lie, from its shapes at two lengths.

    Parameters
    ----------
    numbers : sequence of Extent
        Numbers of positions that it may have: the first one that fits is taken.

    Raises
    ------
    Mixed
        If a dimension is no multiple of the numbers.
    """
    if len(small) != len(large):
        raise Mixed(f"{what} has another number of dimensions for another length".strip())
    found = []
    for axis, (a, b) in enumerate(zip(small, large)):
        if a == b:
            continue
        extent = extent_of(a, b, lengths, numbers)
        if extent is None:
            raise Mixed(f"{what} has a dimension that is no multiple of the length".strip())
        found.append(Share(axis, *extent))
    return tuple(found)


def extent_of(small: int, large: int, lengths: tuple[int, int], numbers: Numbers) -> Extent | None:
    """Return what gives both sizes at the two lengths: a multiple of one of the numbers; None if there is none."""
    for number in numbers:
        counts = [number.of(length) for length in lengths]
        if counts[0] > 0 and not small % counts[0] and small // counts[0] * counts[1] == large:
            return number._replace(each=small // counts[0])
    return None


def operands(value) -> list:
    """Return the variables and constants that a value reads, in the order of its arguments."""
    if isinstance(value, ir.Var) or is_array(value):
        return [value]
    if isinstance(value, ir.Tuple):
        return [each for part in value.fields for each in operands(part)]
    if isinstance(value, ir.TupleGetItem):
        return [value.tuple_value]
    if isinstance(value, ir.Call):
        args = value.args[1:2] if value.op == CALL_TIR else value.args
        return [each for part in args for each in operands(part)]
    return []


def is_array(value) -> bool:
    """Whether a value is a constant tensor."""
    return isinstance(value, ir.Constant) and hasattr(value.value, "numpy")


def array_shape(ty) -> tuple[int, ...]:
    """Return the shape of a tensor's type; none for a scalar."""
    return tuple(map(int, ty.shape)) if getattr(ty, "shape", None) else ()


def shares_of_type(before, ty, lengths, what: str, numbers: Numbers):
    """Return where the positions of a tensor lie, or a list for a tuple (`shares_of`)."""
    if isinstance(ty, relax.TupleType):
        return [shares_of_type(*pair, lengths, what, numbers) for pair in zip(before.fields, ty.fields, strict=True)]
    return shares_of(array_shape(before), array_shape(ty), lengths, what, numbers)


def same_prefix(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether a constant at one length is the beginning of the constant at another one."""
    if one.ndim != other.ndim:
        return False
    common = tuple(slice(min(pair)) for pair in zip(one.shape, other.shape))
    return np.array_equal(one[common], other[common], one.dtype.kind == "f")


def require_same_positions(
    one: tvm.IRModule, other: tvm.IRModule, lengths: tuple[int, int], work: LengthWork | None
) -> None:
    """Refuse a model that differs with the length in more than its sizes.

    Parameters
    ----------
    one, other : tvm.IRModule
        The model before ``LegalizeOps`` at the two lengths.
    work : LengthWork or None
        The facts of the model. Without them, sizes are not compared: `positions.length_work` does that.

    Raises
    ------
    Mixed
        If the models differ in an operator, an attribute or a constant, or a size follows no number of positions.
    """
    numbers = work.numbers if work is not None else ()

    def grows(a: int, b: int) -> bool:
        return work is None or extent_of(a, b, lengths, numbers) is not None

    def same(a: np.ndarray, b: np.ndarray) -> bool:
        if not same_prefix(a, b):  # `with_masks` compares it with the number that an operator reads
            return is_one_number(a, b)
        return all(one == other or grows(one, other) for one, other in zip(a.shape, b.shape))

    require_same_graph(one, other, lengths, same, grows)
    if work is not None and not work.fits(one, other, lengths):
        raise Mixed(f"a tensor of the model for {lengths[0]} has another size than the others say")
