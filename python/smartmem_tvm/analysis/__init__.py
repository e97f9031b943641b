# SPDX-License-Identifier: Apache-2.0
"""Analyses of kernels and graphs; none of them changes a module."""
