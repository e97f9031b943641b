# SPDX-License-Identifier: Apache-2.0
"""Some sizes within the ranges of an open dimension: those that commands with a row for each size show."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from math import gcd, isqrt
from typing import TYPE_CHECKING

from ..errors import UserError
from .several_sizes import parse_lists

if TYPE_CHECKING:
    from ..frontend.spec import Spec

_POWERS = 3  # powers of two between the ends of a range. Chosen: each size is a row, which compiles other systems
_BELOW = 3, 4  # part of a range below which its prime is sought. Chosen: it is far from a capacity, and no short one
_NUMBERS = re.compile(r"\d+(?:x\d+)?")
Lists = Mapping[str, Sequence[tuple[int, ...] | str]]
Span = tuple[int, int, int]
"""The ends of a range, in its steps, and the elements of a step."""


def add_sizes(parser: argparse._ActionsContainer) -> None:
    """Add ``--sizes``."""
    text = (
        "sizes of a range to measure, separated by commas, as 1,7,64; of a batch and a length as 2x64 (default: both "
        "ends, some powers of two, and a prime)"
    )
    parser.add_argument("--sizes", metavar="NUMBERS", help=text)


def at_numbers(texts: Sequence[str], named: str | None) -> list[Lists]:
    """Return the lists of ``--shape`` with a number in place of each range: for each of some numbers within them.

    Parameters
    ----------
    texts : sequence of str
        ``--shape``, with one or two ranges.
    named : str or None
        ``--sizes``.

    Raises
    ------
    UserError
        If the user names a number that is in no range, or not one for each range.
    """
    lists = parse_lists(texts)
    ranges = list(dict.fromkeys(dim for dims in lists.values() for dim in dims if isinstance(dim, str)))
    numbers = numbers_within([_ends(each) for each in ranges], named)
    return [
        {name: [at.get(dim, dim) for dim in dims] for name, dims in lists.items()}
        for at in ({text: (number,) for text, number in zip(ranges, each, strict=True)} for each in numbers)
    ]


def numbers_within(spans: Sequence[Span], named: str | None) -> list[tuple[int, ...]]:
    """Return some sizes for each of one or two spans, or those that the user names.

    Raises
    ------
    UserError
        As `at_numbers`.
    """
    if named is not None:
        return [_read(text, spans, named) for text in named.split(",")]
    chosen = [_between(least, most) for least, most, _ in spans]
    count = max(map(len, chosen))
    along = [at / (count - 1) for at in range(count)]  # small with small, and large with large; both ends differ
    pairs = zip(*([each[round(at * (len(each) - 1))] for at in along] for each in chosen))
    return sorted({tuple(number * step for number, (_, _, step) in zip(each, spans)) for each in pairs})


def open_specs(groups: Sequence[Mapping], sizes: Mapping[str, Spec], named: str | None) -> list[Spec]:
    """Return the inputs of some sizes that a compiled folder with an open dimension takes.

    Parameters
    ----------
    groups : sequence of mapping
        `ir.several_sizes.tile_groups`.
    sizes : mapping
        Function of each tile, or capacity -> its inputs.
    named : str or None
        ``--sizes``; the batch comes first.

    Raises
    ------
    UserError
        As `at_numbers`.
    """
    from .several_sizes import with_items

    found = []
    for group in groups:
        around = [group["around"]] if "around" in group else []
        spans = [(each["least"], each["most"], _elements(each)) for each in (*around, group)]
        for numbers in numbers_within(spans, named):
            *items, positions = [number // step for number, (_, _, step) in zip(numbers, spans)]
            tile = group["tiles"][0]
            spec = with_items(sizes[tile["function"]], group, tile["items"], positions)
            found.append(with_items(spec, around[0], 1, items[0]) if around else spec)
    return found


def _ends(text: str) -> Span:
    from ..frontend.open_dimension import Range

    span = Range.read(text)
    if not 1 <= span.least < span.most:
        raise UserError(f"--shape leaves a size open as {text}: give at least 1, and more than that at most.")
    return span.least, span.most, span.step


def _elements(group: Mapping) -> int:
    """Return the elements along an input that are an item, or a position: as many as the user's step has."""
    from ..ir.several_sizes import places_of

    return gcd(*(place["each"] for share in group["inputs"] for place in places_of(share)))


def _read(text: str, spans: Sequence[Span], named: str) -> tuple[int, ...]:
    """Return the numbers of one size that a user names."""
    numbers = tuple(map(int, text.split("x"))) if _NUMBERS.fullmatch(text) else ()
    fits = (number in range(least * step, most * step + 1, step) for number, (least, most, step) in zip(numbers, spans))
    if len(numbers) != len(spans) or not all(fits):
        known = "x".join(f"{least * step}..{most * step}" + f":{step}" * (step > 1) for least, most, step in spans)
        raise UserError(f"--sizes {named} names '{text}', and the model takes {known}: give some of these sizes.")
    return numbers


def _between(least: int, most: int) -> list[int]:
    """Return both ends of a range, powers of two between, and a prime."""
    powers = [2**k for k in range(least.bit_length() - 1, most.bit_length()) if least < 2**k < most]
    part, whole = _BELOW
    primes = (n for n in range(most * part // whole, least, -1) if _is_prime(n))
    return sorted({least, most, *_spread(powers, _POWERS), *list(primes)[:1]})


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """Return at most so many of the numbers, from the last one backwards at equal distances."""
    return list(numbers[:: -max(1, -(-len(numbers) // count))])


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % each for each in range(2, isqrt(number) + 1))
