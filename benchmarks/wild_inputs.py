# SPDX-License-Identifier: Apache-2.0
"""Inputs that look like those which the packages of wild_files.json feed their networks: a voice, a page, a text.

An input is a line of the table, ``KIND SHAPE``, with ``< N`` for whole numbers below N, ``= V`` for a value, and
``<- OUTPUT`` for a state: the next call gets what the network gave under that name. A list in braces, as in
``page 1x3x48x{64,96,128}``, takes the place of a number where a file is compiled for several sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from smartmem_tvm.errors import UserError

RATE = 16000
"""Samples of the voice per second."""
_PITCH, _FORMANTS = 120.0, ((730, 90), (1090, 110), (2440, 170))  # Hz; a vowel's resonances and their widths
_HOP, _WINDOW = 160, 512  # samples, 10 and 32 ms
_LINE, _GLYPH = 24, 12  # pixels of a line of the page and of a letter
_TEXT = "The quick brown fox jumps over the lazy dog; sphinx of black quartz, judge my vow. 0123456789 "
_LIST = re.compile(r"\{(\d+(?:,\d+)*)\}")
_FORM = re.compile(r"(\w+) (-|\d+(?:x\d+)*)(?: (<|=) (-?\d+(?:\.\d+)?))?(?: <- (.+))?")


@dataclass(frozen=True)
class Drawn:
    """An input of the table.

    Attributes
    ----------
    kind : str
        A name of `KINDS`.
    shape : tuple of int
        Its sizes; none for a single number.
    number : float
        The limit of whole numbers, or the value.
    state : str
        The output that takes its place in the next call; empty if none does.
    """

    kind: str
    shape: tuple[int, ...]
    number: float = 0.0
    state: str = ""

    def array(self, dtype: np.dtype, seed: int) -> np.ndarray:
        """Numbers of that type; another seed draws others."""
        values = KINDS[self.kind](self, np.random.default_rng(seed))
        return np.asarray(values).reshape(self.shape).astype(dtype, order="C")


def drawn(text: object, where: str) -> Drawn:
    """An input as the table writes it.

    Raises
    ------
    UserError
        If it is none.
    """
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] not in KINDS:
        kinds = ", ".join(KINDS)
        raise UserError(f"Input '{text}' of {where} is none; write KIND 1x16 with a KIND of {kinds}.")
    kind, sizes, _, number, state = found.groups()
    shape = () if sizes == "-" else tuple(map(int, sizes.split("x")))
    return Drawn(kind, shape, float(number or 0), state or "")


def sizes_of(inputs: Mapping[str, str], where: str) -> list[dict[str, Drawn]]:
    """Return the inputs of each size, of which most files have one; lists go through their numbers together.

    Raises
    ------
    UserError
        If an input is none, or lists differ in length.
    """
    counts = {len(found[1].split(",")) for text in inputs.values() for found in _LIST.finditer(str(text))}
    if len(counts) > 1:
        raise UserError(
            f"The lists of sizes of {where} have {' and '.join(map(str, sorted(counts)))} numbers; give as many each."
        )
    written = lambda text, number: _LIST.sub(lambda found: found[1].split(",")[number], text)  # noqa: E731
    return [
        {name: drawn(written(text, number) if isinstance(text, str) else text, where) for name, text in inputs.items()}
        for number in range(max(counts, default=1))
    ]


def voice(count: int, random: np.random.Generator) -> np.ndarray:
    """Samples of a vowel with a pause in the middle and a little noise, at most 0.5."""
    time = np.arange(count) / RATE
    pitch = _PITCH * random.uniform(0.8, 1.3)
    sound = np.zeros(count)
    for harmonic in range(1, int(4000 / pitch)):
        frequency = harmonic * pitch
        gain = sum(1 / (1 + ((frequency - at) / width) ** 2) for at, width in _FORMANTS)
        sound += gain * np.sin(2 * np.pi * frequency * time + random.uniform(0, 2 * np.pi))
    sound *= (np.abs(time - time.mean()) > 0.05 * time[-1]) if count > RATE // 4 else 1.0
    return 0.5 * sound / max(np.abs(sound).max(), 1e-9) + random.normal(0, 0.002, count)


def spectrum(frames: int, bands: int, random: np.random.Generator) -> np.ndarray:
    """Logarithm of the power of a voice in so many frames and bands, about zero."""
    sound = voice(frames * _HOP + _WINDOW, random)
    pieces = np.stack([sound[start * _HOP : start * _HOP + _WINDOW] for start in range(frames)])
    power = np.abs(np.fft.rfft(pieces * np.hanning(_WINDOW))) ** 2
    at = np.linspace(0, power.shape[1] - 1, bands)
    log = np.log10(np.stack([np.interp(at, np.arange(power.shape[1]), row) for row in power]) + 1e-6)
    return (log - log.mean()) / log.std()


def page(height: int, width: int, random: np.random.Generator) -> np.ndarray:
    """A white page with lines of dark letters, from -1 (black) to 1."""
    paper = np.ones((height, width))
    line, glyph = min(_LINE, max(height // 2, 2)), min(_GLYPH, max(width // 4, 2))
    for top in range(line // 4, height - line // 2, line):
        for left in range(glyph // 2, width - glyph, glyph):
            if random.random() < 0.15:
                continue  # between words
            strokes = np.kron(random.random((5, 3)) < 0.5, np.ones((max(line // 10, 1), max(glyph // 4, 1))))
            place = paper[top : top + strokes.shape[0], left : left + strokes.shape[1]]
            place -= 1.8 * strokes[: place.shape[0], : place.shape[1]]
    return np.clip(paper + random.normal(0, 0.02, paper.shape), -1, 1)


def _page(each: Drawn, random: np.random.Generator) -> np.ndarray:
    """Pages of one or three channels, which are the last of the sizes or the second."""
    batch, *sizes = each.shape
    if sizes[-1] in (1, 3) and sizes[0] not in (1, 3):
        pages = [page(sizes[0], sizes[1], random) for _ in range(batch)]
        return np.stack([np.stack([one] * sizes[2], axis=-1) for one in pages])
    pages = [page(sizes[1], sizes[2], random) for _ in range(batch)]
    return np.stack([np.stack([one] * sizes[0]) for one in pages])


def _voice(each: Drawn, random: np.random.Generator) -> np.ndarray:
    return voice(int(np.prod(each.shape)), random)


def _frames(each: Drawn, random: np.random.Generator) -> np.ndarray:
    *batch, frames, bands = each.shape
    return np.stack([spectrum(frames, bands, random) for _ in range(int(np.prod(batch)))])


def _bands(each: Drawn, random: np.random.Generator) -> np.ndarray:
    *batch, bands, frames = each.shape
    return np.stack([spectrum(frames, bands, random).T for _ in range(int(np.prod(batch)))])


def _text(each: Drawn, random: np.random.Generator) -> np.ndarray:
    """The bytes of a sentence, wrapped into the vocabulary."""
    count, start = int(np.prod(each.shape)), int(random.integers(len(_TEXT)))
    letters = np.frombuffer(_TEXT.encode() * (count // len(_TEXT) + 2), np.uint8)[start : start + count]
    return letters.astype(np.int64) % int(each.number or 256)


def _text_one_based(each: Drawn, random: np.random.Generator) -> np.ndarray:
    """As `_text`, without the number 0, which stands for padding."""
    return 1 + _text(Drawn("text", each.shape, each.number - 1), random)


KINDS: dict[str, Callable[[Drawn, np.random.Generator], np.ndarray]] = {
    "voice": _voice,
    "frames": _frames,
    "bands": _bands,
    "page": _page,
    "text": _text,
    "words": _text_one_based,
    "ids": lambda each, random: random.integers(0, int(each.number or 2), each.shape),
    "normal": lambda each, random: random.normal(0, 1, each.shape),
    "positive": lambda each, random: np.abs(random.normal(0, 1, each.shape)),
    "full": lambda each, _: np.full(each.shape, each.number),
    "zeros": lambda each, _: np.zeros(each.shape),
}
"""Kind -> what draws it: ``frames`` are times x bands of a voice's spectrum, ``bands`` the other way round."""
