# SPDX-License-Identifier: Apache-2.0
"""The one place that knows which TVM this is; the version check comes before anything of TVM is used."""

from smartmem_tvm._version import version_problem

_problem = version_problem()
if _problem is not None:
    raise ImportError(_problem)
