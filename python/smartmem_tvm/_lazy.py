# SPDX-License-Identifier: Apache-2.0
"""Names of a package that are imported when they are first asked for (PEP 562).

For packages whose modules are imported from outside too. Python holds a lock for each module that is being imported,
and takes that of a module before that of its package: where the package imports the module in turn, two threads that
begin at the two ends wait for each other, which Python ends by an error or by a module that is not complete.
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
        Public name -> the module below the package that it is from. The package's own modules are found without.
    check : callable, optional
        Called before anything is imported; what it raises is what asks for a name gets.
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
