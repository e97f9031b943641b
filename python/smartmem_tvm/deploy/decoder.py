# SPDX-License-Identifier: Apache-2.0
"""A decoder: token ids in, token ids out, by a compiled model that keeps its caches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from os import PathLike

import numpy as np

from ..errors import UserError
from .bound import Bound
from .hidden_rows import HiddenRows
from .host_call import HostCall
from .inference_session import to_numpy
from .runnable import Runnable
from .sampling import Sampling
from .token_inputs import Step, TokenInputs, Written

_LOGITS = "logits"
Ids = Sequence[int]


class Decoder:
    """Writes tokens with a model that was compiled with caches: one sequence, or as many as the model's batch.

    Each decoder has caches of its own, of zeros at first, and shares the weights. It runs the model's largest size that
    the tokens fill, and pads to a size of the model where there is room: a model with the sizes of 1 and of 128 tokens
    reads a prompt 128 tokens at a time. Padding has positions behind the tokens, which the model must mask, and later
    tokens write over its rows. Before it pads for the first time, a decoder tests that the model does mask them; if
    not, it pads nothing.

    Where all caches are circular, a sequence may have more tokens than these have rows. What is behind the rows is read
    token by token, as several at once would write over rows that the first one sees.

    Of a model with a batch, each sequence has a length of its own. A sequence that gets no tokens in a run keeps its
    rows; if the caches are full, its last token is computed again.

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
        If the model has no caches, or an input that is none of these.
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
        self._inputs = TokenInputs(self._session, {"ids": ids, "positions": positions, "mask": mask}, others or {})
        self._sizes, self._logits = sorted(self._inputs.sizes), self._output(logits)
        self.sequences = self._inputs.sequences
        """How many sequences the model writes at once."""
        self.capacity = self._inputs.capacity
        """Rows of the caches, of several the fewest: the most tokens of a sequence, unless they are circular."""
        self._written = [Written() for _ in range(self.sequences)]
        self._all_scores, self._busy = True, threading.Lock()
        self._behind = HiddenRows(self._session.vm.caches, self._written, self._computed)
        self._bound: dict[str, tuple[Mapping[str, np.ndarray], Bound | HostCall]] = {}

    @property
    def length(self) -> int:
        """Return the number of tokens whose rows are in the caches; of several sequences, of the longest one."""
        return max(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """Return this number for each sequence."""
        return [each.length for each in self._written]

    def reset(self, sequence: int | None = None) -> None:
        """Begin another sequence; rows of the last one are not seen any more.

        Parameters
        ----------
        sequence : int, optional
            Which one, from 0 on; by default all.

        Raises
        ------
        UserError
            If there is no such sequence, or the sequences of this model must be of one length.
        """
        with self._alone():
            if sequence is None:
                self._begin()
                return
            if not 0 <= sequence < self.sequences:
                raise UserError(f"There is no sequence {sequence}: the model has {self.sequences}, counted from 0.")
            if self._inputs.together:
                raise UserError(f"{self._why_together()} Reset all of them.")
            self._written[sequence].length = 0

    def _begin(self) -> None:
        for each in self._written:
            each.length = 0

    def feed(self, ids: Ids | Sequence[Ids]) -> np.ndarray:
        """Append tokens to the sequence, or to each of several.

        Parameters
        ----------
        ids : sequence of int, or of sequences of int
            At least one token. For a model with a batch, a list for each sequence, or for the first ones; an empty one
            leaves its sequence as it is.

        Returns
        -------
        np.ndarray
            The scores of the next token, one for each token that there is: (vocabulary), or (sequences, vocabulary) if
            `ids` are lists. NaN for a sequence without tokens.

        Raises
        ------
        UserError
            If there are no tokens, or they do not fit into the caches, or another thread uses the decoder. Nothing is
            written then.
        """
        with self._alone():
            nested, scores = _is_nested(ids), self._feed(self._lists(ids))
            return np.stack(scores) if nested else scores[0]

    def generate(
        self,
        prompt: Ids | Sequence[Ids],
        tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Collection[int] = (),
    ) -> list[int] | list[list[int]]:
        """Return the tokens that follow a prompt, or each of several, at the beginning of new sequences.

        Parameters
        ----------
        prompt : sequence of int, or of sequences of int
            At least one token. For a model with a batch, a prompt for each sequence, or for the first ones.
        tokens : int
            The most tokens that are returned for each. Of several sequences, one whose caches are full ends before.
        temperature, top_k, top_p
            See `deploy.sampling.Sampling`; by default the token with the largest score is taken.
        seed : int
            Of the random numbers: equal calls return equal tokens. The second of several sequences has the seed ``seed
            + 1``, and so on.
        stop : collection of int
            Tokens that end a sequence; the one that did is the last that is returned.

        Returns
        -------
        list of int, or of lists of int
            A list of lists if `prompt` is one.

        Raises
        ------
        UserError
            As `feed`, and if a parameter makes no sense.
        """
        steps = list(self.tokens(prompt, tokens, temperature, top_k, top_p, seed, stop))
        return of_each(steps) if _is_nested(prompt) else steps

    def tokens(
        self,
        prompt: Ids | Sequence[Ids],
        tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Collection[int] = (),
    ) -> Iterator[int] | Iterator[list[int | None]]:
        """Yield the tokens of `generate` one by one; the decoder is in use until the last one.

        For several prompts, a list with a token for each, or None where the sequence has ended.
        """
        if tokens < 1:
            raise UserError(f"{tokens} tokens are asked for: ask for at least one.")
        sampling, nested = Sampling(temperature, top_k, top_p), _is_nested(prompt)
        with self._alone():
            lists = self._lists(prompt)
            empty = [at for at, each in enumerate(lists[: len(prompt) if nested else 1]) if not each.size]
            if empty:
                raise UserError(f"Prompt {empty[0]} has no tokens: give at least one id.")
            for each in lists:
                self._refuse_too_many(len(each) + (0 if nested else tokens - 1), taken=0)
            self._begin()
            count = len(prompt) if nested else 1
            draws = [np.random.default_rng(seed + at) for at in range(count)]
            for found in self._steps(lists, tokens, sampling, draws, stop):
                yield found if nested else found[0]

    def _steps(
        self,
        lists: list[np.ndarray],
        tokens: int,
        sampling: Sampling,
        draws: Sequence[np.random.Generator],
        stop: Collection[int],
    ) -> Iterator[list[int | None]]:
        ended: set[int] = set()
        for left in reversed(range(tokens)):
            scores = self._feed(lists)
            found = [None if at in ended else sampling.token(scores[at], draw) for at, draw in enumerate(draws)]
            yield found
            ended |= {
                at for at, token in enumerate(found) if token in stop or self._written[at].length == self._inputs.most
            }
            if not left or len(ended) == len(draws):
                return
            next_ones = [[] if at in ended else [token] for at, token in enumerate(found)]
            lists = self._lists(next_ones)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise UserError("This decoder is in use, and its caches hold one sequence: make a decoder for each thread.")
        try:
            yield
        finally:
            self._busy.release()

    def _lists(self, ids: Ids | Sequence[Ids]) -> list[np.ndarray]:
        """Return checked tokens of each sequence."""
        nested = _is_nested(ids)
        given = list(ids) if nested else [ids]
        if len(given) > self.sequences:
            raise UserError(
                f"{len(given)} lists of tokens are given, and the model writes {self.sequences} "
                f"{'sequence' if self.sequences == 1 else 'sequences'} at once: give as many, or compile it for a "
                f"larger batch."
            )
        found = [_checked(each, may_be_empty=nested and self.sequences > 1) for each in given]
        return found + [np.zeros(0, "int64")] * (self.sequences - len(found))

    def _feed(self, lists: list[np.ndarray]) -> list[np.ndarray]:
        """Append tokens; return the scores after the last token of each sequence, NaN for one without tokens."""
        if not any(each.size for each in lists):
            raise UserError("Tokens are a list of at least one whole number: give their ids.")
        if self._inputs.together:
            lists = self._alike(lists)
        for written, each in zip(self._written, lists, strict=True):
            self._refuse_too_many(len(each), written.length)
        before = [(each.length, each.last) for each in self._written]
        try:
            while any(each.size for each in lists):
                step = self._next(lists)
                if not self._run(step):
                    continue
                for each, count in zip(self._written, step.counts, strict=True):
                    each.length += count
                lists = [each[count:] for each, count in zip(lists, step.counts, strict=True)]
        except BaseException:
            for each, (length, last) in zip(self._written, before, strict=True):
                if each.length <= self.capacity:  # else rows of tokens before were written over
                    each.length, each.last = length, last
            raise
        if self.sequences == 1:
            return [self._written[0].scores]
        some = next(each.scores for each in self._written if each.length)
        return [each.scores if each.length else np.full_like(some, np.nan) for each in self._written]

    def _alike(self, lists: list[np.ndarray]) -> list[np.ndarray]:
        """Return lists of one length, in which sequences without tokens get zeros."""
        counts = {len(each) for each in lists if each.size}
        if len(counts) > 1:
            raise UserError(f"{self._why_together()} Give each as many tokens.")
        return [each if each.size else np.zeros(max(counts), "int64") for each in lists]

    def _why_together(self) -> str:
        return (
            f"The model writes the rows of its {self.sequences} sequences at one place, as its caches or its inputs "
            f"have one position for all, so that they are of one length."
        )

    def _next(self, lists: list[np.ndarray]) -> Step:
        """Return the tokens to run next, and the size of the model that takes them."""
        left, room = [len(each) for each in lists], self.capacity - self.length
        for size in self._candidates(max(left)):
            if size > 1 and room < size:
                continue
            may_pad = self._all_scores and self._behind.may_pad(self._inputs.sizes[size])
            counts = [min(each, size) if may_pad or each >= size else 0 for each in left]
            if any(counts):
                return self._step(lists, counts, size)
        sizes = ", ".join(map(str, self._sizes))
        raise UserError(
            f"The model's sizes take {sizes} tokens at a time, and {max(left)} are left, for which the caches have no "
            f"room to spare: compile it for 1 token as well."
        )

    def _candidates(self, most: int) -> list[int]:
        """Return sizes, the preferred ones first: the least that takes all tokens, then those that take fewer."""
        sizes = self._sizes
        if most in self._inputs.sizes:
            return [most, *(size for size in reversed(sizes) if size < most)]
        larger = [size for size in sizes if size >= most]
        return larger[:1] + [size for size in reversed(sizes) if size < most]

    def _step(self, lists: list[np.ndarray], counts: list[int], size: int) -> Step:
        if self.sequences == 1 and counts[0] == size:
            return Step(self._inputs.sizes[size], lists[0][None, :size], counts, self.lengths)
        ids, first = np.zeros((self.sequences, size), "int64"), self.lengths
        for at, (tokens, count) in enumerate(zip(lists, counts, strict=True)):
            ids[at, :count] = tokens[:count]
            if not count and first[at] == self._inputs.most:  # full: its last token once more
                ids[at, 0], first[at] = self._written[at].last, first[at] - 1
        return Step(self._inputs.sizes[size], ids, counts, first)

    def _run(self, step: Step) -> bool:
        """Run a step and keep the scores; return False if it has to be repeated in another way."""
        self._behind.prepare(step)
        scores = self._computed(step)
        known = scores.shape[1] == step.size
        if self._behind.seen(step, scores):
            return False
        if not known and step.padded:
            self._all_scores = False  # rows of the padding are written over by the tokens' own
            return False
        for at, (each, count) in enumerate(zip(self._written, step.counts, strict=True)):
            if count:
                each.scores = scores[at, count - 1 if known else -1]
                each.last = step.ids[at, count - 1]
        return True

    def _computed(self, step: Step) -> np.ndarray:
        """Return the scores of a run: sequences x tokens, or only the last one, x vocabulary."""
        if self._session.vm.on_cpu:
            found = self._session.run(self._inputs.arrays(step), function=step.function)[self._logits]
        else:
            found = self._run_bound(step)[self._logits].copy()  # the next token's scores may take their place
        return found.reshape(self.sequences, -1, found.shape[-1])

    def _run_bound(self, step: Step) -> list[np.ndarray]:
        """Run a step on another device, where memory for each token's inputs would take longer than a kernel."""
        function = step.function
        if function not in self._bound:
            given, through = self._inputs.arrays(step), self._session.host_call(function)
            if through is None:
                own = {name: np.array(array) for name, array in given.items()}
                self._bound[function] = own, self._session.bind(own, function=function)
            else:
                self._bound[function] = through.inputs, through
                for name, array in given.items():
                    through.inputs[name][...] = array
        own, bound = self._bound[function]
        self._inputs.fill(own, step)
        found = bound.run()
        return self._session.stated(found if isinstance(bound, HostCall) else to_numpy(found), function)

    def _refuse_too_many(self, more: int, taken: int) -> None:
        most = self._inputs.most
        if most is not None and taken + more > most:
            rows = f"{most} rows, and {taken} are taken" if taken else f"{most} rows"
            raise UserError(
                f"The caches have {rows}, and {more} more do not fit: give fewer tokens, or compile the model with "
                f"larger caches."
            )

    def _output(self, name: str | None) -> int:
        names = [each.name for each in next(iter(self._session.outputs.values()))]
        wanted = name or (_LOGITS if _LOGITS in names else names[0] if len(names) == 1 else _LOGITS)
        if wanted not in names:
            raise UserError(
                f"The model has no output '{wanted}': name the one with the scores, as logits='{names[0]}'."
            )
        return names.index(wanted)


def of_each(steps: Sequence[Sequence[int | None]]) -> list[list[int]]:
    """Return the tokens of each sequence, of what `Decoder.tokens` yielded for several."""
    return [[each for each in tokens if each is not None] for tokens in zip(*steps, strict=True)]


def _is_nested(ids: Ids | Sequence[Ids]) -> bool:
    """Whether these are tokens of several sequences."""
    return len(ids) > 0 and isinstance(ids[0], Sequence | np.ndarray)


def _checked(ids: Ids, may_be_empty: bool) -> np.ndarray:
    if len(ids) == 1 and type(ids[0]) is int and ids[0] >= 0:  # the usual case, which takes part in each token's time
        return np.array(ids)
    tokens = np.asarray(ids)
    if may_be_empty and tokens.shape == (0,):
        return tokens.astype("int64")
    if tokens.ndim != 1 or not tokens.size or tokens.dtype.kind not in "iu":
        raise UserError("Tokens are a list of at least one whole number: give their ids.")
    if tokens.min() < 0:
        raise UserError(f"{tokens.min()} is no id of a token: ids are numbers from 0 up.")
    return tokens.astype("int64")
