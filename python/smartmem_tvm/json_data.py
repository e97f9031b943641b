# SPDX-License-Identifier: Apache-2.0
"""JSON from outside: parsed within limits, and checked against a shape; and data converted to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import UserError, reason_of

MOST_BYTES = 2**30  # bytes of a file; the module of the largest network of the suite has a tenth of this
MOST_DEPTH = 100  # nesting depth of lists and objects

Shape = type | tuple | list | dict | Callable[[object], bool] | None


def parse(text: str | bytes) -> object:
    """Parse a text.

    Raises
    ------
    ValueError
        If it is no JSON, or nested more deeply than `MOST_DEPTH`. Numbers may be NaN or infinite: see `is_positive`.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise _too_deep() from error
    begins = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, begins)) > MOST_DEPTH:
        _check_depth(value)
    return value


def read(path: Path) -> object:
    """Parse a file.

    Raises
    ------
    OSError
        If the file cannot be read, or the path is no file.
    ValueError
        As `parse`, or if the file is larger than `MOST_BYTES`.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is no file")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return parse(path.read_text(encoding="utf-8"))


def fits(value: object, shape: Shape) -> bool:
    """Whether a value has a given shape.

    Parameters
    ----------
    shape
        A type; a tuple of alternative shapes; a list of one shape, for a list of any length with elements of that
        shape; a dictionary of shapes by key, where a key that ends with ``?`` may be missing; a predicate; or None.
    """
    if isinstance(shape, tuple):
        return any(fits(value, each) for each in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(each, shape[0]) for each in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(_has(value, key, each) for key, each in shape.items())
    if isinstance(shape, type):
        return isinstance(value, shape) and (shape in (bool, object) or not isinstance(value, bool))
    return value is None if shape is None else shape(value)


@contextmanager
def as_written(name: str, remedy: str) -> Iterator[None]:
    """Report errors inside the context as the fault of a file that was changed after this package had written it.

    Raises
    ------
    UserError
        In place of Python's error for a missing or unexpected value.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        what = f"{type(error).__name__}: {reason_of(error)}"
        raise UserError(f"{name} is not as it was written ({what}); {remedy}.") from error


def is_positive(value: object) -> bool:
    """Whether a value is a finite number above zero."""
    return fits(value, (int, float)) and value > 0 and math.isfinite(value)


def is_size(value: object) -> bool:
    """Whether a value is a whole number that fits a count of bytes or elements."""
    return fits(value, int) and 0 <= value < 2**63


def is_count(value: object) -> bool:
    """Whether a value is a whole number above zero."""
    return is_size(value) and value > 0


def _has(value: dict, key: str, shape: Shape) -> bool:
    name = key.removesuffix("?")
    return fits(value[name], shape) if name in value else name != key


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {MOST_DEPTH} deep")


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MOST_DEPTH):
        holders = [each for each in level if isinstance(each, dict | list)]
        if not holders:
            return
        level = [part for each in holders for part in (each.values() if isinstance(each, dict) else each)]
    raise _too_deep()


def plain(value: Any) -> Any:
    """Return data as JSON can hold it: numpy numbers as Python's, NaN and infinities (which JSON lacks) as null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
