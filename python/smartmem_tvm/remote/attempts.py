# SPDX-License-Identifier: Apache-2.0
"""Work that is tried again, on another device of the key, when one is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from .borrow import DeviceLost
from .session import Session, request

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class Attempts:
    """Runs work on devices of a key; a device that was lost is left alone for a while.

    One object may be used by several threads: each has a device of its own, and what one learns of a device counts for
    all.

    Parameters
    ----------
    tracker : str
        ``host:port``.
    key : str
        Which kind of device.
    tries : int
        How often work is begun before its error is the caller's.
    cool_down : float
        Seconds that a lost device is left alone.
    timeout : float
        Seconds to wait for a free device, each time.
    limit : float
        Seconds that one session may take, 0 for any time.

    Attributes
    ----------
    cooling : dict of str to float
        Address of a device that was lost -> until when it is left alone, as `time.monotonic` counts.
    """

    def __init__(
        self,
        tracker: str,
        key: str,
        *,
        tries: int = 3,
        cool_down: float = 10.0,
        timeout: float = 60.0,
        limit: float = 0.0,
    ):
        self.tracker, self.key, self.tries, self.cool_down = tracker, key, tries, cool_down
        self.timeout, self.limit = timeout, limit
        self.cooling: dict[str, float] = {}

    def run(self, work: Callable[[Session], Result]) -> Result:
        """The result of `work`, which gets a session and begins anew with each.

        Raises
        ------
        DeviceLost
            If that happened to every try.
        UserError
            If there is no device to try on.
        Exception
            Whatever else `work` raises, at the first time.
        """
        for left in reversed(range(self.tries)):
            try:
                # What others learn while this one waits for a device counts for it too.
                options = {"limit": self.limit, "avoid": self.cooling}
                with request(self.tracker, self.key, self.timeout, **options) as session:
                    return work(session)
            except DeviceLost as error:
                self.cooling[error.address] = time.monotonic() + self.cool_down
                if not left:
                    raise
                _log.warning("%s Trying again.", error)
        raise ValueError("work that is to be tried no times")
