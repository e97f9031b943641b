# SPDX-License-Identifier: Apache-2.0
"""The one exception that means: the input is at fault, not the program; and what others say in one line."""


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
    """What a check on request found: a fault of this package, which it names in place of a wrong result."""

    @property
    def what(self) -> str:
        """Tells such errors apart, whatever model they are from: which check, and of a check of outputs which pass."""
        check, _, found = str(self).partition(": ")
        guilty, changes, _ = found.partition(" changes ")
        return guilty if changes else check


def reason_of(error: BaseException) -> str:
    """The last line of an error's message, which is where TVM says it; the error's type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
