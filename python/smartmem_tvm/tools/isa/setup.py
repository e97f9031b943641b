# SPDX-License-Identifier: Apache-2.0
"""Get Mesa's compiler for Adreno or Mali: Debian's packages, unpacked into a folder of the cache and not installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...deploy.compilers import cross_compiler, remedy
from ...errors import UserError
from ...mesa_folder import ADRENO, MALI, PROGRAM, ROOT, VERSION, enter, machine_problem, mesa_folder
from .drivers import EMULATOR

SUITE = "sid"
"""Debian's suite with Mesa's OpenCL and its DRM shim in versions that fit (26.2.6 on 2026-11-28)."""
PACKAGES = ("mesa-opencl-icd", "mesa-drm-shim", "ocl-icd-libopencl1")
EMULATOR_PACKAGE = "qemu-user"
"""The package with the emulator of arm64, which needs no other; one of its programs is kept."""
_ARCHITECTURES = {ADRENO: "amd64", MALI: "arm64"}
_TRIPLE = "aarch64-unknown-linux-gnu"
_MIRROR = "http://deb.debian.org/debian/"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SOURCES = Path("/etc/apt")
_LISTS = 10_000_000  # bytes of the suite's list of packages as it is fetched (2026-11-28)
_PROGRAMS = {"apt-get": "apt", "dpkg-deb": "dpkg"}
_URI = re.compile(r"^'([^']+)' (\S+) (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Package:
    """A package that is fetched: its name, version and bytes."""

    name: str
    version: str
    size: int


def set_up(say: Callable[[str], None], family: str = ADRENO) -> dict:
    """Fetch and unpack Mesa, and build the program that runs its compiler.

    Parameters
    ----------
    say : callable
        Called with a sentence before each thing that is fetched.
    family : str
        `mesa_folder.ADRENO`, or `mesa_folder.MALI`: packages for arm64, and qemu to run them.

    Returns
    -------
    dict
        ``folder``, ``version``, ``packages`` (name -> version) and ``fetched_bytes``.

    Raises
    ------
    UserError
        If this machine lacks something that is needed, or a package cannot be had.
    """
    compiler = _require(family)
    folder = mesa_folder(family)
    apt, wanted = _apt(folder, family), [*PACKAGES]
    if family == MALI:
        wanted.append(f"{EMULATOR_PACKAGE}:amd64")
    lists = _LISTS * (1 + (family == MALI))  # of arm64 and of amd64
    say(f"Fetching the list of packages of Debian {SUITE} from {mirror()}: about {lists / 1e6:.0f} MB.")
    _call([*apt, "update"], "Debian's list of packages cannot be fetched")
    packages = _asked(_call([*apt, "--print-uris", "-y", "install", *wanted], "Mesa's packages are not to be had"))
    size = sum(each.size for each in packages)
    version = next(each.version for each in packages if each.name == PACKAGES[0])
    rest = size - sum(each.size for each in packages if each.name == EMULATOR_PACKAGE)
    say(
        f"Fetching {len(packages)} packages of Debian, {size / 1e6:.0f} MB, unpacked about {5 * rest / 1e6:.0f} MB in "
        f"{folder}: Mesa {version} with LLVM and what they need{', and qemu' if rest < size else ''}. Nothing is "
        f"installed."
    )
    _call([*apt, "-y", "--download-only", "install", *wanted], "Mesa's packages cannot be fetched")
    (folder / VERSION).unlink(missing_ok=True)
    _unpack(folder)
    source = Path(__file__).with_name("build_program.c")
    (folder / ROOT / PROGRAM).parent.mkdir(exist_ok=True)
    words = [*compiler, "-O1", "-o", str(folder / ROOT / PROGRAM), str(source), "-ldl"]
    _call(words, "The C compiler fails")
    (folder / VERSION).write_text(f"{version}\n", encoding="utf-8")
    told = {each.name: each.version for each in packages}
    return {"folder": str(folder), "version": version, "packages": told, "fetched_bytes": size}


def mirror() -> str:
    """Return the mirror of Debian that this machine's apt uses, otherwise Debian's own."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in _source_files()]
    found = re.search(r"\bhttps?://\S+/debian/?(?=\s|$)", "\n".join(texts), re.MULTILINE)
    return f"{found[0].rstrip('/')}/" if found else _MIRROR


def _source_files() -> list[Path]:
    lists = [*sorted(_SOURCES.glob("sources.list.d/*")), _SOURCES / "sources.list"]
    return [path for path in lists if path.suffix in (".sources", ".list") and path.is_file()]


def _require(family: str) -> list[str]:
    """Return the command of the C compiler, after everything else that is needed was found."""
    if problem := machine_problem(family):
        raise UserError(f"{problem[0].upper()}{problem[1:]}.")
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            raise UserError(
                f"Mesa comes in Debian's packages and there is no {program} to unpack them; apt-get install {package}, "
                f"or use a machine with Debian or Ubuntu."
            )
    if not _KEYS.is_file():
        raise UserError(
            f"Debian's packages are checked with the keys in {_KEYS}, which is missing; apt-get install "
            f"debian-archive-keyring."
        )
    command = enter()
    done = subprocess.run([*command, "/", "true"], capture_output=True, check=False) if command else None
    if done is None or done.returncode:
        raise UserError(
            "Mesa's compiler runs in a folder of its own, and this system lets its users have none (unshare is refused "
            "or missing); run as root, or allow user namespaces."
        )
    return _compiler() if family == ADRENO else _cross_compiler()


def _compiler() -> list[str]:
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found is None and find_spec("ziglang") is None:
        raise UserError("A C compiler is needed for a small program; apt-get install gcc, or `pip install ziglang`.")
    return [found] if found else [sys.executable, "-m", "ziglang", "cc"]


def _cross_compiler() -> list[str]:
    """Return the command of a C compiler for arm64."""
    found = cross_compiler(_TRIPLE)
    if found is None:
        raise UserError(f"A small program runs under qemu, and needs {remedy(_TRIPLE)}.")
    return [*found.command, "-x", "c"]


def _apt(folder: Path, family: str) -> list[str]:
    """Return apt-get with all that it reads and writes below a folder."""
    own, architecture = folder / "apt", _ARCHITECTURES[family]
    both = "amd64" if family == ADRENO else f"{architecture},amd64"  # the emulator is for this machine
    try:
        for name in ("lists/partial", "cache/archives/partial"):
            (own / name).mkdir(parents=True, exist_ok=True)
        (own / "status").touch()
        line = f"deb [arch={both} signed-by={_KEYS}] {mirror()} {SUITE} main\n"
        (own / "sources.list").write_text(line, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({error.strerror}); set SMARTMEM_MESA to another folder."
        ) from error
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": both,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",  # the user of apt may not be able to read the folder
        "Acquire::Languages": "none",
        "Dir::State": own,
        "Dir::State::status": own / "status",
        "Dir::State::Lists": own / "lists",
        "Dir::Cache": own / "cache",
        "Dir::Etc::SourceList": own / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
    }
    return ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]


def _asked(output: str) -> list[Package]:
    """Return the packages in what ``apt-get --print-uris`` prints."""
    packages = []
    for _, file, size in _URI.findall(output):
        name, version, _ = file.split("_", 2)
        packages.append(Package(name, version.replace("%3a", ":"), int(size)))
    if not any(each.name == PACKAGES[0] for each in packages):
        raise UserError(f"Debian {SUITE} has no {PACKAGES[0]} at present; try again in a few days.")
    return packages


def _unpack(folder: Path) -> None:
    root = folder / ROOT
    shutil.rmtree(root, ignore_errors=True)
    for name in ("dev", "tmp", "usr/bin", "usr/lib", "usr/lib64"):
        (root / name).mkdir(parents=True)
    (root / "dev/null").touch()  # a device needs root; what Mesa writes there may as well be kept
    for link in ("bin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    archives = folder / "apt/cache/archives"
    for file in sorted(archives.glob("*.deb")):
        emulator = file.name.startswith(f"{EMULATOR_PACKAGE}_")
        place = folder / "apt/emulator" if emulator else root
        _call(["dpkg-deb", "-x", str(file), str(place)], f"{file.name} cannot be unpacked")
        if emulator:  # of its forty programs one is kept
            shutil.move(place / "usr/bin/qemu-aarch64", root / EMULATOR)
    shutil.rmtree(folder / "apt")


def _call(command: Sequence[str], problem: str) -> str:
    """Run a program and return what it prints.

    Raises
    ------
    UserError
        If it fails, with its last line.
    """
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        last = ([each for each in (done.stderr or done.stdout).splitlines() if each.strip()] or ["no message"])[-1]
        raise UserError(f"{problem} ({last.strip()}); see to it that Debian's mirror can be reached, and try again.")
    return done.stdout
