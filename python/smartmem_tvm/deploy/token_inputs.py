# SPDX-License-Identifier: Apache-2.0
"""The inputs of a language model by their roles, and their arrays for the tokens of one run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..errors import UserError, shape_text
from ..tables.decoder_inputs import MASKS, POSITIONS
from .arguments import Parameter, TensorKind
from .inference_session import Session

_IDS = ("input_ids", "decoder_input_ids")


@dataclass(frozen=True, eq=False)
class Step:
    """The tokens of one run.

    Attributes
    ----------
    function : str
        The function that takes as many.
    ids : np.ndarray
        Sequences x tokens; behind the tokens of a sequence are zeros.
    counts : sequence of int
        For each sequence, how many of them it has.
    first : sequence of int
        For each sequence, the row of the first one.
    """

    function: str
    ids: np.ndarray
    counts: Sequence[int]
    first: Sequence[int]

    @property
    def size(self) -> int:
        """Tokens that each sequence gets, with its padding."""
        return self.ids.shape[1]

    @property
    def padded(self) -> bool:
        """Whether a sequence has fewer tokens; one that has none does not count."""
        return any(0 < each < self.size for each in self.counts)


@dataclass
class Written:
    """A sequence, as far as it is written.

    Attributes
    ----------
    length : int
        Tokens whose rows are in the caches.
    last : int
        The last of them.
    scores : np.ndarray or None
        Of the next token, if there was one before.
    used : int
        Rows of the caches that hold something: those behind its tokens are of an earlier sequence, or of padding.
    """

    length: int = 0
    last: int = 0
    scores: np.ndarray | None = None
    used: int = 0


class TokenInputs:
    """Knows which input of a model takes what, and makes the arrays.

    Parameters
    ----------
    session : Session
        Of a model with caches.
    given : mapping
        ``ids``, ``positions``, ``mask`` -> the input's name; None for the names that exporters use.
    others : mapping
        Further inputs -> their arrays, the same in all runs.

    Attributes
    ----------
    sequences : int
        How many sequences a run takes.
    capacity : int
        Rows of the caches, of several the fewest.
    most : int or None
        The most tokens of a sequence: rows of the caches that are not circular. None if all are.
    together : bool
        Whether all sequences must have as many tokens: rows of all are written at one place, or an input has one number
        for all.
    sizes : dict
        Tokens of a sequence -> the function that takes as many.

    Raises
    ------
    UserError
        If an input is not known, or has another shape than a decoder gives.
    """

    def __init__(self, session: Session, given: Mapping[str, str | None], others: Mapping[str, np.ndarray]):
        functions = session.functions
        names = [param.name for param in next(iter(functions.values()))]
        self._others = {name: np.asarray(array) for name, array in others.items()}
        self._roles = _roles(names, given, self._others)
        self._params = functions
        plan = session.vm.caches.plan
        caches = [each for found in plan.functions.values() for each in found]
        rows = {each: plan.tensors[each.name].shape[each.axis] for each in caches}
        self.capacity = min(rows.values())
        self.most = min((size for each, size in rows.items() if not each.circular), default=None)
        self.sequences = self._count_sequences()
        self.together = self.sequences > 1 and any(each.sequences != self.sequences for each in caches)
        self.sizes = {self._tokens(name, params): name for name, params in sorted(functions.items(), reverse=True)}

    def arrays(self, step: Step) -> dict[str, np.ndarray]:
        """Return the inputs of a run by their names."""
        return {param.name: self._array(param, step) for param in self._params[step.function]}

    def fill(self, arrays: Mapping[str, np.ndarray], step: Step) -> None:
        """Write the inputs of a run over those of another one: what is most often one number, at once."""
        for param in self._params[step.function]:
            array = arrays[param.name]
            if array.size == step.ids.size == 1 and param.name == self._roles["ids"]:
                array[...] = step.ids[0, 0]
            elif array.size == self.sequences == 1 and param.name == self._roles["positions"]:
                array[...] = step.first[0]
            elif param.name not in self._others:
                array[...] = self._array(param, step)

    def _array(self, param: Parameter, step: Step) -> np.ndarray:
        dims, dtype = param.kind.dims, param.kind.dtype
        if param.name in self._others:
            return self._others[param.name]
        if param.name == self._roles["ids"]:
            return step.ids.astype(dtype, copy=False).reshape(dims)
        positions = param.name == self._roles["positions"]
        if positions and self.sequences == 1:
            return np.arange(step.first[0], step.first[0] + prod(dims), dtype=dtype).reshape(dims)
        places = np.array(step.first)[:, None] + np.arange(step.size)
        if positions:
            return self._of_all(places, prod(dims), step.size).astype(dtype, copy=False).reshape(dims)
        ends = places[:, 0] + np.maximum(step.counts, 1)  # a token that sees nothing has no softmax
        if len(dims) == 2:  # the rows that are taken
            return (np.arange(dims[-1]) < ends[: dims[0], None]).astype(dtype).reshape(dims)
        seen = np.arange(dims[-1]) <= places[: dims[0], :, None]  # sequences x tokens x rows
        if dtype.startswith("float"):
            return np.where(seen, 0, np.finfo(dtype).min).astype(dtype).reshape(dims)
        return seen.astype(dtype).reshape(dims)

    def _of_all(self, places: np.ndarray, numbers: int, size: int) -> np.ndarray:
        """Return as many positions as an input has: of all tokens, or of the first ones; of each sequence, or one."""
        lines = places if self._is_for_each(numbers, size) else places[:1]
        return lines if numbers == lines.size else lines[:, 0]

    def _is_for_each(self, numbers: int, size: int) -> bool:
        """Whether an input has a position, or as many as tokens, for each sequence."""
        each = numbers in (self.sequences, self.sequences * size)
        return each and not (self.together and numbers in (1, size))

    def _count_sequences(self) -> int:
        found = {prod(dims[:-1]) for dims in self._dims_of(self._roles["ids"]) if dims}
        if len(found) > 1:
            counts = ", ".join(map(str, sorted(found)))
            raise UserError(
                f"The model's sizes take {counts} sequences, and a decoder has caches for one of these numbers: "
                f"compile a model for each number."
            )
        return found.pop() if found else 0

    def _dims_of(self, name: str) -> list[tuple[int, ...]]:
        kinds = [param.kind for params in self._params.values() for param in params if param.name == name]
        return [kind.dims for kind in kinds if isinstance(kind, TensorKind) and _is_known(kind)]

    def _tokens(self, function: str, params: Sequence[Parameter]) -> int:
        """Return how many tokens of each sequence a function takes, after a check of its inputs."""
        kinds = {param.name: param.kind for param in params}
        for name, kind in kinds.items():
            if not isinstance(kind, TensorKind) or not _is_known(kind):
                raise UserError(
                    f"Input '{name}' is no tensor of known sizes, and a decoder gives arrays: name another."
                )
        dims = {name: kind.dims for name, kind in kinds.items()}
        ids, count = dims[self._roles["ids"]], dims[self._roles["ids"]][-1]
        if not prod(ids):
            raise UserError(f"Function '{function}' takes {shape_text(ids)} tokens: compile it for at least one.")
        places, mask = self._roles["positions"], self._roles["mask"]
        if places is not None:
            self._check_positions(places, dims[places], count)
        if mask is not None:
            self._check_mask(mask, dims[mask], count)
        return count

    def _check_positions(self, name: str, dims: tuple[int, ...], count: int) -> None:
        numbers = prod(dims)
        if numbers not in {1, count, self.sequences, self.sequences * count}:
            raise UserError(
                f"Input '{name}' takes {shape_text(dims)} positions, and there are {count} tokens"
                f"{self._of_sequences()}."
            )
        if self.sequences > 1:
            self.together |= not self._is_for_each(numbers, count)

    def _check_mask(self, name: str, dims: tuple[int, ...], count: int) -> None:
        known = {(lines, *rest) for lines in (1, self.sequences) for rest in ((self.capacity,), self._table(count))}
        if dims not in known:
            lines = "1" if self.sequences == 1 else f"{self.sequences}"
            raise UserError(
                f"Input '{name}' has the shape {shape_text(dims)}: a decoder gives masks of {lines} x rows of the "
                f"caches, or of {lines} x 1 x tokens x rows."
            )
        self.together |= dims[0] < self.sequences

    def _table(self, count: int) -> tuple[int, int, int]:
        return 1, count, self.capacity

    def _of_sequences(self) -> str:
        return f" of {self.sequences} sequences" if self.sequences > 1 else ""


def _is_known(kind: TensorKind) -> bool:
    return all(isinstance(dim, int) for dim in kind.dims or [None])


def _roles(names: Sequence[str], given: Mapping[str, str | None], others: Collection[str]) -> dict[str, str | None]:
    """Return which input has which role; `others` have none."""
    for name in others:
        if name not in names:
            known = ", ".join(f"'{each}'" for each in names)
            raise UserError(f"The model has no input '{name}', for which an array is given: it takes {known}.")
    usual = {"ids": _IDS, "positions": POSITIONS, "mask": MASKS}
    roles: dict[str, str | None] = {}
    for role, name in given.items():
        if name is not None and name not in names:
            known = ", ".join(f"'{each}'" for each in names)
            raise UserError(f"The model has no input '{name}' for the {role}: it takes {known}.")
        free = (each for each in usual[role] if each in names and each not in others)
        roles[role] = name or next(free, None)
    for each in names:
        if each not in roles.values() and each not in others:
            raise UserError(
                f"Input '{each}' of the model is known neither as tokens, positions nor mask: say which it is, as "
                f"ids='{each}' or positions='{each}' (`smartmem generate --ids {each}`), give it an array (others), or "
                f"bind it to a value when the model is compiled (--value)."
            )
    if roles["ids"] is None:
        raise UserError(
            f"None of the model's inputs is called {_IDS[0]}: name the one that takes tokens, as ids='...'."
        )
    return roles
