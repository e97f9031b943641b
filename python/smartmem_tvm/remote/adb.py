# SPDX-License-Identifier: Apache-2.0
"""Call Android's ``adb``: list phones and run commands on one. No other module of this package calls it."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError

SECONDS = 15.0  # for an answer; the first call also starts adb's server
PUSH_SECONDS = 300.0
_REMEDIES = {
    "unauthorized": "unlock it and accept this machine's key on its screen",
    "authorizing": "unlock it and accept this machine's key on its screen",
    "offline": "plug it in again, or run `adb reconnect offline`",
    "no": "give yourself access to the USB device, by Debian's android-sdk-platform-tools-common or a udev rule",
}


class AdbError(UserError):
    """A command of adb failed or timed out."""


def call(*words: str, seconds: float | None = None) -> str:
    """Run ``adb WORDS`` and return its output.

    Parameters
    ----------
    words : str
        The arguments.
    seconds : float, optional
        Time limit; by default `SECONDS`.

    Raises
    ------
    AdbError
        If adb fails or does not answer in time.
    UserError
        If adb is not installed.
    """
    seconds, what = seconds or SECONDS, f"`adb {shlex.join(words)[:120]}`"
    try:
        done = subprocess.run(
            ["adb", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except OSError as error:
        raise UserError(
            f"adb cannot be run ({error.strerror}): install Android's platform-tools (apt-get install adb) and put "
            "adb on PATH."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise AdbError(f"{what} did not answer in {seconds:g} s: look whether the phone is plugged in.") from error
    if done.returncode:
        said = last_line(done.stderr) or last_line(done.stdout) or f"exit code {done.returncode}"
        raise AdbError(f"{what} failed ({said}): look whether the phone is plugged in and unlocked.")
    return done.stdout


def last_line(text: str) -> str:
    """Return the last non-empty line, or an empty text."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@dataclass(frozen=True)
class Phone:
    """A phone that adb can reach.

    Attributes
    ----------
    serial : str
        The phone's name in adb.
    """

    serial: str

    def adb(self, *words: str, seconds: float | None = None) -> str:
        """Run an adb command on this phone and return its output; raise AdbError if it fails."""
        return call("-s", self.serial, *words, seconds=seconds)

    def shell(self, script: str) -> str:
        """Run a script in the phone's shell and return its output; raise AdbError if it fails."""
        return self.adb("shell", script)

    def property(self, name: str) -> str:
        """Return a system property, empty if it does not exist."""
        return self.shell(f"getprop {shlex.quote(name)}").strip()

    def read(self, *patterns: str) -> dict[str, str | None]:
        """Return the content of each file that matches a pattern of the shell, None if it may not be read."""
        # The shell keeps a pattern without a match, which is then no existing file.
        loop = 'do [ -e "$f" ] && echo "$f $(cat "$f" 2>/dev/null)"; done; true'
        lines = self.shell(f"for f in {' '.join(patterns)}; {loop}").splitlines()
        pairs = (line.partition(" ") for line in lines if line.startswith("/"))
        return {path: text.strip() or None for path, _, text in pairs}

    def push(self, file: Path, target: str) -> None:
        """Copy a file of this machine to the phone."""
        self.adb("push", str(file), target, seconds=PUSH_SECONDS)

    def reverse(self, port: int) -> None:
        """Forward a port of the phone to the same port of this machine."""
        self.adb("reverse", f"tcp:{port}", f"tcp:{port}")

    def forward(self, port: int) -> None:
        """Forward a port of this machine to the same port of the phone; raise AdbError if it is in use."""
        self.adb("forward", "--no-rebind", f"tcp:{port}", f"tcp:{port}")

    def unreverse(self, port: int) -> None:
        """Undo `reverse`, if it is active."""
        with contextlib.suppress(AdbError):
            self.adb("reverse", "--remove", f"tcp:{port}")

    def unforward(self, ports: range) -> None:
        """Undo `forward` for the ports that lead to this phone."""
        # adb would also remove a port that leads to another phone.
        rows = [line.split() for line in call("forward", "--list").splitlines()]
        mine = {row[1] for row in rows if row and row[0] == self.serial}
        for port in ports:
            if f"tcp:{port}" in mine:
                self.adb("forward", "--remove", f"tcp:{port}")


def find(serial: str | None = None) -> Phone:
    """Return the phone with that serial, or the only one.

    Raises
    ------
    UserError
        If there is none, if there are several, or if it is not ready.
    """
    states = dict(_states(call("devices", "-l")))
    if not states:
        raise UserError("adb finds no phone: plug one in and turn on USB debugging in its developer options.")
    if serial is None and len(states) > 1:
        raise UserError(f"adb finds several phones ({', '.join(states)}): choose one with --serial.")
    serial = next(iter(states)) if serial is None else serial
    if serial not in states:
        raise UserError(f"adb finds no phone '{serial}': give --serial one of {', '.join(states)}.")
    state = states[serial]
    if state != "device":
        remedy = _REMEDIES.get(state, "start Android on it")
        raise UserError(f"Phone {serial} is {'not accessible' if state == 'no' else state}: {remedy}.")
    return Phone(serial)


def _states(listing: str) -> list[tuple[str, str]]:
    # Lines before the heading are messages of adb's server.
    rows = listing.partition("List of devices attached")[2].splitlines()
    return [(row.split()[0], row.split()[1]) for row in rows if len(row.split()) > 1]
