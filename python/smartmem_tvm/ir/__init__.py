# SPDX-License-Identifier: Apache-2.0
"""Kernels and graphs as data: read, compared, composed, re-indexed and written back, without any policy."""
