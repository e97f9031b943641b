# SPDX-License-Identifier: Apache-2.0
"""Winograd convolutions of 3 x 3 windows: products of transformed tiles."""
