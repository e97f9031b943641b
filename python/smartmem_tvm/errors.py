# SPDX-License-Identifier: Apache-2.0
"""The exceptions for faulty input and for failed checks, and texts for their messages."""

from collections.abc import Iterable


class UserError(Exception):
    """Bad input by the user.

    The message is one sentence that names the file, tensor or operator, the rule it breaks and the remedy.
    The command line prints that sentence without a traceback and ends with exit code `EXIT_CODE`.
    """

    EXIT_CODE = 2

    def __init__(self, message: str):
        # Names come from files, and may hold line breaks.
        super().__init__(" ".join(message.split()))


class CheckError(UserError):
    """A fault of this package found by a check on request, reported in place of a wrong result."""

    @property
    def what(self) -> str:
        """A name for the fault that does not depend on the model: the check and, for outputs, the guilty pass."""
        check, _, found = str(self).partition(": ")
        guilty, changes, _ = found.partition(" changes ")
        return guilty if changes else check


def reason_of(error: BaseException) -> str:
    """Return the last line of an error's message, where TVM puts the reason; the error's type if it is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def shape_text(shape: Iterable) -> str:
    """Return a shape as messages and tables have it: ``1x3x224x224``, or ``scalar``."""
    return "x".join(map(str, shape)) or "scalar"
