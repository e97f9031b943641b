# SPDX-License-Identifier: Apache-2.0
"""The one exception that means: the input is at fault, not the program."""


class UserError(Exception):
    """Bad input by the user.

    The message is one sentence that names the file, tensor or operator, the rule it breaks and the remedy.
    The command line prints that sentence without a traceback and ends with exit code `EXIT_CODE`.
    """

    EXIT_CODE = 2

    def __init__(self, message: str):
        # Names come from files, and may hold line breaks.
        super().__init__(" ".join(message.split()))
