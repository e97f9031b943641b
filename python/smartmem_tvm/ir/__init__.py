# SPDX-License-Identifier: Apache-2.0
"""Kernels and graphs as data: read, compared, composed, re-indexed, written back; no opinion on them."""
