# SPDX-License-Identifier: Apache-2.0
"""Import the names of a package on first use (PEP 562).

This is for packages whose modules are also imported from outside. Python holds a lock for each module during its
import, and takes the lock of a module before that of its package. If the package imports the module in turn, two
threads that begin at the two ends wait for each other, and Python gives one of them an error or an incomplete module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy(
    package: str, names: Mapping[str, str], check: Callable[[], None] = lambda: None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make the ``__getattr__``, the ``__dir__`` and the ``__all__`` of a package.

    Parameters
    ----------
    package : str
        The name of the package, which calls this in its ``__init__.py``.
    names
        Public name -> the module below the package that defines it. The package's own modules need no entry.
    check : callable, optional
        Called before an import; its errors reach the code that uses the name.
    """

    def get(name: str) -> Any:
        module = names.get(name, name)
        if name.startswith("_") or (name not in names and find_spec(f"{package}.{name}") is None):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        check()
        found = import_module(f"{package}.{module}")
        if name in names:
            found = getattr(found, name)
            setattr(sys.modules[package], name, found)
        return found

    def known() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get, known, sorted(names)
