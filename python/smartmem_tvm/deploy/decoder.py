# SPDX-License-Identifier: Apache-2.0
"""A decoder: token ids in, token ids out, by a compiled model that keeps its caches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from os import PathLike

import numpy as np

from ..errors import UserError, shape_text
from ..tables.decoder_inputs import MASKS, POSITIONS
from .arguments import Parameter, TensorKind
from .bound import Bound
from .host_call import HostCall
from .inference_session import to_numpy
from .runnable import Runnable
from .sampling import Sampling

_IDS = ("input_ids", "decoder_input_ids")
_LOGITS = "logits"


class Decoder:
    """Writes one sequence of tokens with a model that was compiled with caches.

    Each decoder has caches of its own, of zeros at first, and shares the weights. It runs the model's largest size that
    the tokens fill, and pads to a size of the model where there is room: a model with the sizes of 1 and of 128 tokens
    reads a prompt 128 tokens at a time. Padding has positions behind the tokens, which the model must mask, and later
    tokens write over its rows.

    Parameters
    ----------
    model : Compiled, Loaded or path
        A model, or a folder of ``smartmem compile``.
    ids, positions, mask, logits : str, optional
        The inputs that take the tokens, their places in the sequence, and the mask of the rows that are seen, and the
        output with the scores. By default those of the names that exporters use: ``input_ids`` or
        ``decoder_input_ids``; ``position_ids``, ``cache_position``, ``positions`` or ``position``; ``attention_mask``
        or ``mask``; ``logits``.
    others : mapping, optional
        Further inputs -> their arrays, the same for all tokens: what an encoder says, for example.

    Raises
    ------
    UserError
        If the model has no caches, an input that is none of these, or more than one sequence.
    """

    def __init__(
        self,
        model: Runnable | str | PathLike,
        ids: str | None = None,
        positions: str | None = None,
        mask: str | None = None,
        logits: str | None = None,
        others: Mapping[str, np.ndarray] | None = None,
    ):
        if not isinstance(model, Runnable):
            from .export import load

            model = load(model)
        self._session = model.session()
        if not self._session.caches:
            raise UserError("This model keeps no caches between inferences: compile it with --cache, or caches=True.")
        functions = self._session.functions
        names = [param.name for param in next(iter(functions.values()))]
        self._others = {name: np.asarray(array) for name, array in (others or {}).items()}
        self._roles = _roles(names, {"ids": ids, "positions": positions, "mask": mask}, self._others)
        self._sizes = {self._tokens(name, params): name for name, params in sorted(functions.items(), reverse=True)}
        self._logits = self._output(logits)
        self.capacity = _capacity(self._session)
        """Rows of the caches: the most tokens of a sequence."""
        self._length, self._all_scores, self._busy = 0, True, threading.Lock()
        self._bound: dict[str, tuple[Mapping[str, np.ndarray], Bound | HostCall]] = {}

    @property
    def length(self) -> int:
        """Return the number of tokens whose rows are in the caches."""
        return self._length

    def reset(self) -> None:
        """Begin another sequence; rows of the last one are not seen any more."""
        with self._alone():
            self._length = 0

    def feed(self, ids: Sequence[int]) -> np.ndarray:
        """Append tokens to the sequence.

        Parameters
        ----------
        ids : sequence of int
            At least one.

        Returns
        -------
        np.ndarray
            The scores of the next token, one for each token that there is.

        Raises
        ------
        UserError
            If there are no tokens, or they do not fit into the caches, or another thread uses the decoder. Nothing is
            written then.
        """
        with self._alone():
            return self._feed(ids)

    def generate(
        self,
        prompt: Sequence[int],
        tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Collection[int] = (),
    ) -> list[int]:
        """Return the tokens that follow a prompt, at the beginning of a new sequence.

        Parameters
        ----------
        prompt : sequence of int
            At least one token.
        tokens : int
            The most tokens that are returned.
        temperature, top_k, top_p
            See `deploy.sampling.Sampling`; by default the token with the largest score is taken.
        seed : int
            Of the random numbers: equal calls return equal tokens.
        stop : collection of int
            Tokens that end the sequence; the one that did is the last that is returned.

        Raises
        ------
        UserError
            As `feed`, and if a parameter makes no sense.
        """
        return list(self.tokens(prompt, tokens, temperature, top_k, top_p, seed, stop))

    def tokens(
        self,
        prompt: Sequence[int],
        tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Collection[int] = (),
    ) -> Iterator[int]:
        """Yield the tokens of `generate` one by one; the decoder is in use until the last one."""
        if tokens < 1:
            raise UserError(f"{tokens} tokens are asked for: ask for at least one.")
        sampling, random = Sampling(temperature, top_k, top_p), np.random.default_rng(seed)
        with self._alone():
            self._refuse_too_many(len(prompt) + tokens - 1, taken=0)
            self._length = 0
            scores = self._feed(prompt)
            for left in reversed(range(tokens)):
                found = sampling.token(scores, random)
                yield found
                if found in stop or not left:
                    return
                scores = self._feed([found])

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise UserError("This decoder is in use, and its caches hold one sequence: make a decoder for each thread.")
        try:
            yield
        finally:
            self._busy.release()

    def _feed(self, ids: Sequence[int]) -> np.ndarray:
        tokens = np.asarray(ids)
        if tokens.ndim != 1 or not tokens.size or tokens.dtype.kind not in "iu":
            raise UserError("Tokens are a list of at least one whole number: give their ids.")
        if tokens.min() < 0:
            raise UserError(f"{tokens.min()} is no id of a token: ids are numbers from 0 up.")
        self._refuse_too_many(len(tokens), self._length)
        before, scores = self._length, None
        try:
            while len(tokens):
                count, size = self._part(len(tokens))
                scores = self._run(tokens[:count], size)
                if scores is None:
                    continue
                self._length, tokens = self._length + count, tokens[count:]
        except BaseException:
            self._length = before
            raise
        return scores

    def _part(self, left: int) -> tuple[int, int]:
        """Return how many tokens to run next, and by which size of the model."""
        sizes = sorted(self._sizes)
        larger = [size for size in sizes if size >= left and self._length + size <= self.capacity]
        if larger and (larger[0] == left or self._all_scores):
            return left, larger[0]
        smaller = [size for size in sizes if size <= left]
        if not smaller:
            raise UserError(
                f"The model's sizes take {', '.join(map(str, sizes))} tokens at a time, and {left} are left, for which "
                f"the caches have no room to spare: compile it for 1 token as well."
            )
        return smaller[-1], smaller[-1]

    def _run(self, tokens: np.ndarray, size: int) -> np.ndarray | None:
        """Return the scores after the last token; None if they are only known for the last of padded tokens."""
        name = self._sizes[size]
        if self._session.vm.on_cpu:
            given = {param.name: self._argument(param, tokens, size) for param in self._session.functions[name]}
            found = self._session.run(given, function=name)[self._logits]
        else:
            found = self._run_bound(tokens, size, name)[self._logits]
        scores = found.reshape(-1, found.shape[-1])
        if len(tokens) < size and len(scores) != size:
            self._all_scores = False  # rows of the padding are written over by the tokens' own
            return None
        last = scores[len(tokens) - 1] if len(scores) == size else scores[-1]
        return last if self._session.vm.on_cpu else last.copy()  # the next token's scores may take their place

    def _run_bound(self, tokens: np.ndarray, size: int, function: str) -> list[np.ndarray]:
        """Run a function on another device, where memory for each token's inputs would take longer than a kernel."""
        params = self._session.functions[function]
        if function not in self._bound:
            through = self._session.host_call(function)
            if through is None:
                own = {param.name: np.array(self._argument(param, tokens, size)) for param in params}
                self._bound[function] = own, self._session.bind(own, function=function)
            else:
                self._bound[function] = through.inputs, through
                for param in params:
                    through.inputs[param.name][...] = self._argument(param, tokens, size)
        own, bound = self._bound[function]
        for param in params:
            self._fill(own[param.name], param, tokens, size)
        found = bound.run()
        return self._session.stated(found if isinstance(bound, HostCall) else to_numpy(found), function)

    def _fill(self, array: np.ndarray, param: Parameter, tokens: np.ndarray, size: int) -> None:
        """Write an input of a size of the model into its array: what is most often one number, at once."""
        if len(tokens) == array.size == 1 and param.name == self._roles["ids"]:
            array[...] = tokens[0]
        elif array.size == 1 and param.name == self._roles["positions"]:
            array[...] = self._length
        elif param.name not in self._others:  # those are there since the first run
            array[...] = self._argument(param, tokens, size)

    def _argument(self, param: Parameter, tokens: np.ndarray, size: int) -> np.ndarray:
        dims, dtype = param.kind.dims, param.kind.dtype
        if param.name in self._others:
            return self._others[param.name]
        if param.name == self._roles["ids"]:
            padded = np.zeros(size, dtype)
            padded[: len(tokens)] = tokens
            return padded.reshape(dims)
        places = np.arange(self._length, self._length + size)
        if param.name == self._roles["positions"]:
            return places[: prod(dims)].astype(dtype).reshape(dims)
        if len(dims) == 2:  # the rows that are taken
            return (np.arange(dims[-1]) < self._length + len(tokens)).astype(dtype).reshape(dims)
        seen = np.arange(dims[-1]) <= places[:, None]  # tokens x rows
        if dtype.startswith("float"):
            return np.where(seen, 0, np.finfo(dtype).min).astype(dtype).reshape(dims)
        return seen.astype(dtype).reshape(dims)

    def _refuse_too_many(self, more: int, taken: int) -> None:
        if taken + more > self.capacity:
            rows = f"{self.capacity} rows, and {taken} are taken" if taken else f"{self.capacity} rows"
            raise UserError(
                f"The caches have {rows}, and {more} more do not fit: give fewer tokens, or compile the model with "
                f"larger caches."
            )

    def _tokens(self, function: str, params: Sequence[Parameter]) -> int:
        """Return how many tokens a function takes, after a check of its inputs."""
        kinds = {param.name: param.kind for param in params}
        for name, kind in kinds.items():
            if not isinstance(kind, TensorKind) or not all(isinstance(dim, int) for dim in kind.dims or [None]):
                raise UserError(
                    f"Input '{name}' is no tensor of known sizes, and a decoder gives arrays: name another."
                )
        dims = {name: kind.dims for name, kind in kinds.items()}
        ids = dims[self._roles["ids"]]
        if prod(ids) != ids[-1]:
            raise UserError(
                f"Function '{function}' takes {shape_text(ids)} tokens, and a decoder writes one sequence: compile the "
                f"model for a batch of 1, or call `run`."
            )
        count, places, mask = ids[-1], self._roles["positions"], self._roles["mask"]
        if places is not None and prod(dims[places]) not in (1, count):
            raise UserError(
                f"Input '{places}' takes {shape_text(dims[places])} positions, and there are {count} tokens."
            )
        if mask is not None and not _is_mask(dims[mask], count, _capacity(self._session)):
            raise UserError(
                f"Input '{mask}' has the shape {shape_text(dims[mask])}: a decoder gives masks of 1 x rows of the "
                f"caches, or of 1 x 1 x tokens x rows."
            )
        return count

    def _output(self, name: str | None) -> int:
        names = [each.name for each in next(iter(self._session.outputs.values()))]
        wanted = name or (_LOGITS if _LOGITS in names else names[0] if len(names) == 1 else _LOGITS)
        if wanted not in names:
            raise UserError(
                f"The model has no output '{wanted}': name the one with the scores, as logits='{names[0]}'."
            )
        return names.index(wanted)


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
                f"positions='{each}', give it an array (others), or bind it to a value when the model is compiled "
                f"(--value)."
            )
    if roles["ids"] is None:
        raise UserError(
            f"None of the model's inputs is called {_IDS[0]}: name the one that takes tokens, as ids='...'."
        )
    return roles


def _is_mask(dims: tuple[int, ...], tokens: int, rows: int) -> bool:
    return dims == (1, rows) or dims == (1, 1, tokens, rows)


def _capacity(session) -> int:
    """Return the rows of the caches, of several the fewest."""
    plan = session.vm.caches.plan
    caches = [each for found in plan.functions.values() for each in found]
    return min(plan.tensors[each.name].shape[each.axis] for each in caches)
