# SPDX-License-Identifier: Apache-2.0
"""Plain solvers: dataclasses in, an assignment out; they know nothing of TVM."""
