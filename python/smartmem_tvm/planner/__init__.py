# SPDX-License-Identifier: Apache-2.0
"""Solvers that take dataclasses and return an assignment; they do not depend on TVM."""
