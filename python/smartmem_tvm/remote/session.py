# SPDX-License-Identifier: Apache-2.0
"""Sessions on devices of a tracker: with time limits, always closed, and errors that name a remedy."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import about
from .borrow import DeviceLost, borrow
from .relay import EXPIRED as DEADLINE_PASSED
from .relay import REFUSED, Relay
from .server import EXPIRED
from .wire import Address, address_text, parse_address

_CONNECT_SECONDS = 20.0
_PAUSE_SECONDS = 0.1
_ANSWER_SECONDS = 60.0  # for a server that has all data; it may have to run a linker
_SLOWEST_UPLOAD = 100e3  # bytes per second, over a bad wireless connection
_LATE_SECONDS = 2.0  # grace for a server to end a session: its error is more precise than ours


class Session:
    """A device borrowed until `close`; created by `request`.

    Attributes
    ----------
    address, key : str
        The server's address and key.
    about : dict
        The server's facts (`about.about_json`); ``tvm`` is None for TVM's own server, which reports none.
    remote : tvm.rpc.RPCSession
        TVM's session, for functions that this class lacks.
    """

    def __init__(self, address: Address, key: str, match_key: str, limit: float = 0.0):
        self.address, self.key, self.about = address_text(address), key, {"tvm": None}
        self._doing, self._end = "the session", time.monotonic() + limit if limit else math.inf
        # Deadlines with their descriptions, outer ones first.
        self._deadlines = [(self._end + _LATE_SECONDS, f"its session within {limit:g} s")]
        self._overdue = ""
        self._relay = Relay(address)
        try:
            with self.limit(_CONNECT_SECONDS, "the greeting"):
                self.remote = self._connect(match_key, limit)
                if (told := self.function(about.ABOUT, missing_ok=True)) is not None:
                    self.about = about.parse_about(str(told()))
        except BaseException:
            self.close()
            raise

    def device(self, kind: str, index: int = 0) -> Any:
        """Return a device of the server for TVM's functions.

        Parameters
        ----------
        kind : str
            ``"cpu"``, ``"opencl"``, ``"cuda"``...

        Raises
        ------
        UserError
            If the server has no device of that kind.
        """
        found = self.remote.device(kind, index)
        if not self._runs(kind) or not found.exist:
            here = ", ".join(self.kinds())
            raise UserError(
                f"Server {self.address} (key {self.key}) has no device {kind}:{index}{self._why_not(kind)}: compile "
                f"for what it has ({here}), or install the device's driver there."
            )
        return found

    def kinds(self) -> list[str]:
        """Return the kinds of devices that the server's TVM can run."""
        return list(filter(self._runs, about.KINDS))

    def threads(self) -> int:
        """Return the number of threads of kernels on the server's CPU."""
        known = self.function("runtime.NumThreads", missing_ok=True)
        return int(known()) if known is not None else int(self.about.get("cores") or 1)

    def use_threads(self, count: int) -> None:
        """Run kernels of the server's CPU on `count` threads.

        Raises
        ------
        UserError
            If the server has fewer.
        """
        if (configure := self.function("runtime.config_threadpool", missing_ok=True)) is not None:
            configure(1, count)
        if (most := self.threads()) < count:
            raise UserError(
                f"Server {self.address} (key {self.key}) runs kernels on at most {most} threads, not on {count}: give "
                f"--threads {most}, or start it with a larger TVM_NUM_THREADS."
            )

    def _runs(self, kind: str) -> bool:
        return self.function(f"device_api.{kind}", missing_ok=True) is not None

    def function(self, name: str, missing_ok: bool = False) -> Callable | None:
        """Return a global function of the server; None or an error if it is missing, by `missing_ok`."""
        try:
            return self.remote.get_function(name)
        except AttributeError:
            if missing_ok:
                return None
            raise UserError(f"Server {self.address} (key {self.key}) has no function {name}.") from None

    def upload(self, path: Path | str, name: str | None = None) -> str:
        """Upload a file and return its name on the server.

        Raises
        ------
        DeviceLost
            If the connection is lost; the server then has no part of the file.
        """
        path = Path(path)
        data = bytearray(path.read_bytes())
        with self.transfer(len(data), f"the upload of {path.name}"):
            self.remote.upload(data, name or path.name)
        return name or path.name

    def transfer(self, size: int, what: str) -> contextlib.AbstractContextManager[None]:
        """Return a `limit` for an upload of `size` bytes."""
        return self.limit(_ANSWER_SECONDS + size / _SLOWEST_UPLOAD, f"{what} ({size / 1e6:.1f} MB)")

    def load(self, name: str) -> Any:
        """Load the module in an uploaded library, without weights and devices (see `deploy.weights.Machine`)."""
        with self.limit(_ANSWER_SECONDS, f"loading {name}"):
            return self.remote.load_module(name)

    @contextlib.contextmanager
    def limit(self, seconds: float, what: str = "a call") -> Iterator[None]:
        """Limit the time of the block; after it the device is given back and the caller gets an error.

        Raises
        ------
        DeviceLost
            If it takes longer.
        """
        self._deadlines.append((time.monotonic() + seconds, f"{what} within {seconds:g} s"))
        self._relay.set_deadline(min(self._deadlines)[0])
        try:
            with self._step(what):
                yield
        finally:
            deadline, reason = self._deadlines.pop()
            if time.monotonic() >= deadline:
                self._overdue = reason
            self._relay.set_deadline(min(self._deadlines)[0])

    def close(self) -> None:
        """Give the device back; its tensors and functions cannot be used afterwards."""
        self._relay.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, Exception) and not isinstance(error, UserError):
                self.explain(error)
        finally:
            self.close()

    @contextlib.contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Record the current step for errors."""
        before, self._doing = self._doing, what
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            self.explain(error)
            raise
        finally:
            self._doing = before

    def explain(self, error: Exception) -> None:
        """Raise `DeviceLost` if the loss of the device caused `error`; return for errors of the code that ran there."""
        where, again = f"Device {self.address} (key {self.key})", "see whether it hangs, or allow more time"
        if (ending := self._relay.ending) == DEADLINE_PASSED:
            reason = self._overdue or min(self._deadlines)[1]
            raise DeviceLost(f"{where} did not finish {reason}: {again}.", self.address) from error
        # The server's message may have answered the release of an object, whose answer is not read.
        if EXPIRED in str(error) or (time.monotonic() >= self._end and ending):
            raise DeviceLost(f"{where} did not finish its session in time: {again}.", self.address) from error
        if ending:
            raise DeviceLost(
                f"The connection to device {self.address} (key {self.key}) was lost during {self._doing}: what ran "
                "there crashed, or its server or the network is gone; see whether it is running, and try again.",
                self.address,
            ) from error

    def _connect(self, match_key: str, limit: float) -> Any:
        from tvm import rpc

        try:
            return rpc.connect(*self._relay.address, match_key, limit)
        except Exception as error:  # TVM raises several types
            first = (str(error).strip().splitlines() or [""])[0]
            if "protocol version" in str(error):
                raise UserError(_other_version(self, first)) from error
            if (ending := self._relay.ending) == DEADLINE_PASSED:
                raise
            if time.monotonic() >= self._end:
                raise DeviceLost(
                    f"Device {self.address} (key {self.key}) did not begin a session within its limit of {limit:g} s: "
                    "allow more time.",
                    self.address,
                ) from error
            reason = ending.removeprefix(REFUSED).strip() if ending.startswith(REFUSED) else first
            raise DeviceLost(
                f"Device {self.address} (key {self.key}) takes no session ({reason}): see whether its server is "
                "running, and try again.",
                self.address,
            ) from error

    def _why_not(self, kind: str) -> str:
        ask = self.function(f"smartmem.{kind}.problem", missing_ok=True)
        return f" ({str(ask()).rstrip('.')})" if ask is not None and str(ask()) else ""


@contextlib.contextmanager
def request(
    tracker: str,
    key: str,
    timeout: float = 60.0,
    *,
    limit: float = 0.0,
    avoid: Mapping[str, float] | None = None,
    any_version: bool = False,
) -> Iterator[Session]:
    """Borrow a device from a tracker.

    Parameters
    ----------
    tracker : str
        ``host:port``.
    key : str
        The kind of device.
    timeout : float
        Seconds to wait for a free one.
    limit : float
        Seconds after which the server ends the session; 0 for no limit.
    avoid : mapping of str to float, optional
        Address of a server -> the value of `time.monotonic` until which it is not used.
    any_version : bool
        Accept a server with another version of TVM, for inspection only.

    Raises
    ------
    UserError
        If there is no tracker or no device of the key, or the server has another version of TVM.
    DeviceBusy
        If no device was free in time.
    DeviceLost
        If the device was lost, or did not finish in time.
    """
    with _open(parse_address(tracker), key, timeout, limit, {} if avoid is None else avoid) as session:
        told, ours = session.about["tvm"], about.tvm_version()
        if told not in (None, ours) and not any_version:
            raise UserError(_other_version(session, f"it has {told}"))
        yield session


def _open(tracker: Address, key: str, timeout: float, limit: float, avoid: Mapping[str, float]) -> Session:
    """Return a session with the first device from the tracker that answers."""
    end = time.monotonic() + timeout
    while True:
        address, match_key = borrow(tracker, key, end, avoid)
        start = time.monotonic()
        try:
            return Session(address, key, match_key, limit)
        except DeviceLost:
            # A server that has just ended, or registers anew: the tracker learns of it in a moment.
            if time.monotonic() > end - _PAUSE_SECONDS or 0 < limit <= time.monotonic() - start:
                raise
            time.sleep(_PAUSE_SECONDS)


def _other_version(session: Session, found: str) -> str:
    return (
        f"Server {session.address} (key {session.key}) has another TVM than this machine's {about.tvm_version()} "
        f"({found}), which may crash on what is compiled here: install the same version on both."
    )
