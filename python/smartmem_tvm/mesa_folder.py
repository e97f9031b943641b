# SPDX-License-Identifier: Apache-2.0
"""Find Mesa's compilers for Adreno and Mali in the user's cache folder, and say why there is none."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

FOLDER_VARIABLE = "SMARTMEM_MESA"
"""Environment variable that names another folder than the one in the user's cache."""
ROOT, PROGRAM, VERSION = "root", "w/build_program", "version.txt"
"""In the folder: the unpacked packages, below them our program that compiles, and the file with Mesa's version."""
REMEDY = "run `smartmem isa --setup`"
ADRENO, MALI = "adreno", "mali"
"""Families of GPUs, as in `tables.targets`. Only Debian's Mesa for arm64 compiles for Mali."""
_NAMES = {ADRENO: "Adreno", MALI: "Mali"}


def mesa_folder(family: str = ADRENO) -> Path | None:
    """Return the folder that holds Mesa, or that would hold it; None if the user has no cache folder.

    That for Mali lies in the other one.
    """
    chosen = os.environ.get(FOLDER_VARIABLE, "")
    base = os.environ.get("XDG_CACHE_HOME") or (f"{os.environ['HOME']}/.cache" if os.environ.get("HOME") else "")
    if chosen or base:
        folder = Path(chosen or f"{base}/smartmem_tvm/mesa").absolute()
        return folder / MALI if family == MALI else folder
    return None


def mesa_version(family: str = ADRENO) -> str | None:
    """Return the version of Debian's package of Mesa; None if `smartmem isa --setup` has not finished here."""
    folder = mesa_folder(family)
    try:
        found = (folder / VERSION).read_text(encoding="utf-8").strip() if folder else ""
    except OSError:
        return None
    return found if found and (folder / ROOT / PROGRAM).is_file() else None


def mesa_problem(family: str = ADRENO) -> str | None:
    """Return why Mesa's compiler cannot be run here, in the form ``problem: remedy``; None if nothing is known."""
    if problem := machine_problem(family):
        return problem
    if mesa_version(family) is None:
        target = " --target mali-g57" if family == MALI else ""
        return f"Mesa's compiler for {_NAMES[family]} is not in {mesa_folder(family)}: {REMEDY.rstrip('`')}{target}`"
    if enter() is None:
        return (
            "Mesa's compiler runs in a folder of its own, and neither root nor unshare is at hand: install "
            "util-linux, or run as root"
        )
    return None


def machine_problem(family: str = ADRENO) -> str | None:
    """Return why this machine can have no such folder at all, in the form ``problem: remedy``; None if it can."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return f"Mesa's compiler for {_NAMES[family]} runs on Linux on x86-64 only: use such a machine"
    if mesa_folder() is None:
        return f"there is no folder to keep Mesa in, as HOME is not set: set HOME or {FOLDER_VARIABLE}"
    return None


def enter() -> list[str] | None:
    """Return the words that start a program with the unpacked packages as its root folder; None if nothing does.

    Root may change the root folder; others may in a user namespace of their own.
    """
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    chroot, unshare = shutil.which("chroot", path=path), shutil.which("unshare", path=path)
    if chroot is None:
        return None
    if os.geteuid() == 0:
        return [chroot]
    return [unshare, "--user", "--map-root-user", chroot] if unshare else None
