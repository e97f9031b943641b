# SPDX-License-Identifier: Apache-2.0
"""Convolutions of 3 x 3 windows as products of transformed tiles."""
