# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or not there, and that take the place of nothing else."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Another name to write to, with the same ending; the file gets its own when all is written.

    Raises
    ------
    UserError
        If it cannot be written, or would take the place of something that is no file.
    """
    check_output(path)
    file = path.resolve()  # a link stays one
    partial = file.with_name(f".{file.stem}.{uuid.uuid4().hex}{file.suffix}")
    try:
        yield partial
        partial.replace(file)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); give another name.") from error
    finally:
        partial.unlink(missing_ok=True)


def check_output(path: Path, ending: str = "", source: Path | None = None) -> None:
    """Find out before long work whether its result can be kept, and that nothing is lost by it.

    Parameters
    ----------
    ending : str
        Of the names of such files; empty for any.
    source : Path, optional
        What is read to make it.

    Raises
    ------
    UserError
        If the file cannot be written, has another ending, is the source, or is no file, as a folder or a device.
    """
    try:
        exists, folder = path.exists(), path.resolve().parent
    except OSError as error:  # a name that is too long
        raise UserError(f"{path} cannot be written ({error.strerror}); give another name.") from error
    if exists and not path.is_file():
        raise UserError(f"{path} cannot be written, as it is no file; give another name.")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"{path} cannot be written; give a file in a folder that exists and is writable.")
    if ending and path.suffix != ending:
        raise UserError(f"{path} does not end in {ending}, as what is written there should; give another name.")
    if source is not None and exists and source.exists() and path.samefile(source):
        raise UserError(f"{path} is what is read, and would be lost; give another name for what is written.")
