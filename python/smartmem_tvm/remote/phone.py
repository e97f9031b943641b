# SPDX-License-Identifier: Apache-2.0
"""Install, start and stop TVM's C++ server on an Android phone, and read the phone's state."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .adb import AdbError, Phone, last_line
from .keys import tracker_state
from .wire import Address, address_text, is_loopback

FOLDER = "/data/local/tmp/smartmem"
PORTS = 10  # the server takes the first free one: the port that it last used stays closed for a minute
START_SECONDS = 30.0
GONE_SECONDS = 5.0
_PAUSE = 0.2
_MACHINES = {"arm64-v8a": 183, "armeabi-v7a": 40, "armeabi": 40, "x86_64": 62, "x86": 3, "riscv64": 243}
_ZONES = "/sys/class/thermal/thermal_zone*"
_CPU_CLOCKS = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"  # kHz
_GPU_CLOCKS = (
    "/sys/class/kgsl/kgsl-3d0/gpuclk",
    "/sys/class/devfreq/*mali*/cur_freq",
    "/sys/class/devfreq/*gpu*/cur_freq",
)


@dataclass(frozen=True)
class Start:
    """The server on the phone, and the tracker at which it registers.

    Attributes
    ----------
    tracker : tuple
        Host (this machine) and port.
    key : str
        The name under which clients ask for the phone.
    server : Path
        TVM's ``tvm_rpc``, built for the phone.
    further : sequence of Path
        Libraries that the server needs.
    port : int
        The first of `PORTS` ports, with the same numbers here and on the phone.
    """

    tracker: Address
    key: str
    server: Path
    further: Sequence[Path] = ()
    port: int = 9090

    def check(self) -> None:
        """Raise a UserError if this cannot work on any phone."""
        if not is_loopback(self.tracker[0]):
            raise UserError(
                f"A phone on USB cannot reach the tracker at {address_text(self.tracker)}: start one on this machine, "
                f"with `smartmem rpc tracker --port {self.tracker[1]}`, and give its loopback address."
            )
        if not re.fullmatch(r"[\w.-]+", self.key):
            raise UserError(f"'{self.key}' is no key for a phone: give --key letters, digits, '.', '-' and '_'.")
        if not 0 < self.port <= 65536 - PORTS:
            raise UserError(f"Ports from {self.port} do not exist: give --port 1 to {65536 - PORTS}.")
        for file in (self.server, *self.further):
            if not file.is_file():
                raise UserError(f"{file} is no file: give --server and --push what you built for the phone.")

    @property
    def addresses(self) -> set[str]:
        """Return the addresses under which the tracker may list the phone."""
        return {f"127.0.0.1:{port}" for port in range(self.port, self.port + PORTS)}


def elf_machine(file: Path) -> int | None:
    """Return the ELF number of a binary's CPU; None if it is not an ELF file."""
    with file.open("rb") as opened:
        header = opened.read(20)
    return int.from_bytes(header[18:20], "little") if len(header) == 20 and header[:4] == b"\x7fELF" else None


def facts(phone: Phone) -> dict[str, str]:
    """Return serial, model, ABI and Android version."""
    names = {"model": "ro.product.model", "abi": "ro.product.cpu.abi", "android": "ro.build.version.release"}
    return {"serial": phone.serial, **{name: phone.property(key) for name, key in names.items()}}


def state(phone: Phone) -> dict[str, object]:
    """Return temperatures in degrees Celsius and clocks in MHz; None if the phone does not allow reading them."""
    found = phone.read(f"{_ZONES}/type", f"{_ZONES}/temp", _CPU_CLOCKS, *_GPU_CLOCKS)
    zones = {path.rpartition("/")[0]: text for path, text in found.items() if path.endswith("/type")}
    # The kernel reports thousandths of a degree, some makers' drivers degrees.
    heat = {name or zone: _number(found.get(f"{zone}/temp")) for zone, name in zones.items()}
    cores = {path.split("/")[5]: _number(text) for path, text in found.items() if path.endswith("scaling_cur_freq")}
    gpu = [_number(text) for path, text in found.items() if path.endswith(("gpuclk", "/cur_freq"))]
    return {
        "battery_celsius": _battery(phone),
        "zones_celsius": {name: at / 1e3 if at and abs(at) > 200 else at for name, at in heat.items()},
        "cpu_mhz": {core: hertz and hertz / 1e3 for core, hertz in cores.items()} or None,
        "gpu_mhz": next((hertz / 1e6 for hertz in gpu if hertz is not None), None),
    }


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"-?\d+", text) else None


def _battery(phone: Phone) -> float | None:
    try:
        tenths = re.search(r"^\s*temperature: (-?\d+)", phone.shell("dumpsys battery"), re.MULTILINE)
    except AdbError:
        return None
    return int(tenths[1]) / 10 if tenths else None


def start(phone: Phone, wanted: Start) -> str:
    """Copy the server to the phone and start it; return its address at the tracker.

    A server from an earlier start is ended first. Completed steps are undone if a later one fails.

    Raises
    ------
    UserError
        If no tracker answers, a file is for another CPU, a port is taken, or the server does not register.
    """
    wanted.check()
    _check_machines(phone, wanted)
    tracker_state(wanted.tracker)
    stop(phone)
    try:
        _wait_gone(wanted)
        _connect(phone, wanted)
        _push(phone, wanted)
        _launch(phone, wanted)
        return _wait_listed(phone, wanted)
    except BaseException:
        with contextlib.suppress(UserError):
            stop(phone)
        raise


def _check_machines(phone: Phone, wanted: Start) -> None:
    abi = phone.property("ro.product.cpu.abi")
    for file in (wanted.server, *wanted.further):
        machine = elf_machine(file)
        if machine is None and file is wanted.server:
            raise UserError(f"{file} is no ELF program: give --server the tvm_rpc that you built for {abi}.")
        if machine is not None and machine != _MACHINES.get(abi, machine):
            raise UserError(
                f"{file} is for another CPU (ELF machine {machine}) than phone {phone.serial}, which is {abi}: build "
                f"it with -DANDROID_ABI={abi}."
            )


def _wait_gone(wanted: Start) -> None:
    # The tracker notices the end of the phone's previous server a moment later.
    end = time.monotonic() + GONE_SECONDS
    while taken := _listed(wanted, None):
        if time.monotonic() > end:
            raise UserError(f"The tracker has another device at {taken}: give --port another number.")
        time.sleep(_PAUSE)


def _listed(wanted: Start, key: str | None) -> str | None:
    for name, each in tracker_state(wanted.tracker).items():
        if key in (None, name) and (mine := wanted.addresses.intersection(each.servers)):
            return min(mine)
    return None


def _connect(phone: Phone, wanted: Start) -> None:
    tracker, first = wanted.tracker[1], wanted.port
    phone.shell(f"mkdir -p {FOLDER} && echo {tracker} {first} >{FOLDER}/ports")  # `stop` reads them
    _disconnect(phone, tracker, first)
    phone.reverse(tracker)
    for port in range(first, first + PORTS):
        try:
            phone.forward(port)
        except AdbError as error:
            said = str(error).rstrip(".")
            raise UserError(f"Port {port} of this machine is not free ({said}): give --port another number.") from error


def _disconnect(phone: Phone, tracker: int, first: int) -> None:
    phone.unreverse(tracker)
    phone.unforward(range(first, first + PORTS))


def _push(phone: Phone, wanted: Start) -> None:
    phone.push(wanted.server, f"{FOLDER}/tvm_rpc")
    for file in wanted.further:
        phone.push(file, f"{FOLDER}/{file.name}")
    phone.shell(f"chmod 755 {FOLDER}/tvm_rpc")


def _launch(phone: Phone, wanted: Start) -> None:
    # Loopback on the phone, too: adb's ports end there, and it is not reachable over the network.
    options = ["--host=127.0.0.1", f"--port={wanted.port}", f"--port-end={wanted.port + PORTS}"]
    options += [f"--tracker=127.0.0.1:{wanted.tracker[1]}", "--custom-addr=127.0.0.1", f"--key={wanted.key}"]
    # A new session: it outlives adb's shell, and is killed together with its forks.
    server = f"LD_LIBRARY_PATH={FOLDER} setsid ./tvm_rpc server {shlex.join(options)} >log 2>&1 </dev/null"
    phone.shell(f"cd {FOLDER} && {{ {server} & echo $! >pid; }}")


def _wait_listed(phone: Phone, wanted: Start) -> str:
    end = time.monotonic() + START_SECONDS
    while True:
        running = _running(phone)
        if running and (address := _listed(wanted, wanted.key)):
            return address
        if not running or time.monotonic() > end:
            said = last_line(phone.shell(f"tail -n 20 {FOLDER}/log")) or "it printed nothing"
            what = f"did not register in {START_SECONDS:g} s" if running else "ended before it registered"
            raise UserError(
                f"The server on phone {phone.serial} {what} ({said}): build it for this phone, and give --push the "
                "libraries that it needs."
            )
        time.sleep(_PAUSE)


# The process id alone may belong to another program by now.
_MINE = f"p=$(cat {FOLDER}/pid 2>/dev/null) && grep -q tvm_rpc /proc/$p/cmdline 2>/dev/null"


def _running(phone: Phone) -> bool:
    return phone.shell(f"if {_MINE}; then echo yes; fi").strip() == "yes"


def stop(phone: Phone) -> bool:
    """End the server and remove its forwarded ports; return whether there was a server."""
    ended = phone.shell(f"if {_MINE}; then kill -- -$p && echo ended; fi; rm -f {FOLDER}/pid").strip() == "ended"
    ports = phone.shell(f"cat {FOLDER}/ports 2>/dev/null; rm -f {FOLDER}/ports").split()
    if len(ports) == 2 and all(map(str.isdecimal, ports)):
        _disconnect(phone, *map(int, ports))
    return ended
