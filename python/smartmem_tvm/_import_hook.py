# SPDX-License-Identifier: Apache-2.0
"""Call a function once a package is imported, now or later."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec


class _Finder:
    """Finds one package by the other finders, and lets its loader call a function at the end of the import."""

    def __init__(self, package: str, function: Callable[[], None]):
        self.package, self.function = package, function

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        """Return the spec of the package; None for any other package, which the other finders then find."""
        if name != self.package:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.function()

        spec.loader.exec_module = exec_module
        return spec


def after_import(package: str, function: Callable[[], None]) -> None:
    """Call `function` now if a package is imported already, otherwise once, at the end of its import."""
    if package in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _Finder(package, function))
