# SPDX-License-Identifier: Apache-2.0
"""What the rules for CPUs choose by their models, as numbers that may be given instead (`decisions`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MatmulChoice:
    """What is chosen for a contraction.

    Attributes
    ----------
    swapped : bool
        Rows and columns change places.
    height, width : int
        The register tile.
    lanes : int
        Columns that are one vector.
    unroll : int
        Steps along the depth that are written out; it divides the depth.
    row_parts, column_parts : int
        Chunks of rows and of columns, each pair of which is a task.
    parallel : bool
        Tasks are spread over threads.
    left_packed, right_packed : bool
        Operands are copied first.
    """

    swapped: bool
    height: int
    width: int
    lanes: int
    unroll: int
    row_parts: int
    column_parts: int
    parallel: bool
    left_packed: bool
    right_packed: bool


@dataclass(frozen=True)
class WindowChoice:
    """What is chosen for a window.

    Attributes
    ----------
    height, width : int
        Results that are computed together.
    lanes : int
        Results that are one vector.
    unrolled : int
        Longest innermost loop of the reduction that is written out.
    tasks : int
        Tasks that are wanted; one runs on the thread that calls.
    """

    height: int
    width: int
    lanes: int
    unrolled: int
    tasks: int


@dataclass(frozen=True)
class SlideChoice:
    """What is chosen for a convolution of few channels.

    Attributes
    ----------
    height, width : int
        The register tile: channels of the result, and places in the picture.
    lanes : int
        Places that are one vector.
    lines : int
        Lines of the result that are a task; they divide all lines.
    written_out : bool
        The places of the window are written out.
    parallel : bool
        Tasks are spread over threads.
    """

    height: int
    width: int
    lanes: int
    lines: int
    written_out: bool
    parallel: bool


@dataclass(frozen=True)
class RowsChoice:
    """What is chosen for rows.

    Attributes
    ----------
    vectors : int
        Partial sums of a reduction along a row, in vectors.
    together : int
        Rows that are worked on at once where neighbours in memory are neighbouring rows.
    tasks : int
        Tasks that are wanted; one runs on the thread that calls.
    """

    vectors: int
    together: int
    tasks: int


@dataclass(frozen=True)
class BlockChoice:
    """What is chosen for a chain: rows of a block, tasks that share the blocks of a batch, and whether threads do."""

    length: int
    chunks: int
    parallel: bool


@dataclass(frozen=True)
class ElementwiseChoice:
    """Tasks that are wanted; one runs on the thread that calls."""

    tasks: int


@dataclass(frozen=True)
class TransposeChoice:
    """Tasks that are wanted, and the side of the square tile of each step."""

    tasks: int
    side: int
