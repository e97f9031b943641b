# SPDX-License-Identifier: Apache-2.0
"""The surroundings of a running command: redirected output and messages, and a clean stop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def prepared_process(show_warnings: bool) -> Iterator[None]:
    """Keep stdout for the result, shorten messages, and stop cleanly on signals."""
    # TVM would pin its threads, and this process, to the first cores, like every other TVM process.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    # SIGTERM unwinds like Ctrl-C, so that half-written folders are removed.
    terminating = handling(signal.default_int_handler, signal.SIGTERM)
    with _stdout_on_stderr(), _log_on_stderr(), terminating, warnings.catch_warnings():
        if not show_warnings:
            warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Send the output of libraries, from Python or from C++, to stderr."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


@contextlib.contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Show this package's warnings, which name their model or node."""
    logger = logging.getLogger(__package__.partition(".")[0])
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("smartmem: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def handling(handler: Callable, *signals: signal.Signals) -> Iterator[None]:
    """Handle signals by `handler` within the block."""
    try:
        old = [signal.signal(each, handler) for each in signals]
    except ValueError:  # only the main thread can set handlers
        yield
        return
    try:
        yield
    finally:
        for each, before in zip(signals, old):
            signal.signal(each, before)
