# SPDX-License-Identifier: Apache-2.0
"""Sizes of one model that are computed by functions of other sizes."""
