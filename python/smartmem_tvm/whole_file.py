# SPDX-License-Identifier: Apache-2.0
"""Write files atomically, and only over regular files."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary name with the same suffix to write to; the file gets its own name when it is complete.

    Raises
    ------
    UserError
        If the file cannot be written, or the path exists and is no regular file.
    """
    check_output(path)
    file = path.resolve()  # the target of a link is replaced, not the link
    partial = file.with_name(f".{file.stem}.{uuid.uuid4().hex}{file.suffix}")
    try:
        yield partial
        partial.replace(file)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); give another name.") from error
    finally:
        partial.unlink(missing_ok=True)


def check_output(path: Path, ending: str = "", source: Path | None = None) -> None:
    """Check, before long work, that its result can be written without losing other data.

    Parameters
    ----------
    ending : str
        Required suffix of the name; empty for any.
    source : Path, optional
        The file from which the result is made.

    Raises
    ------
    UserError
        If the file cannot be written, has another suffix, is the source, or is no regular file.
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
