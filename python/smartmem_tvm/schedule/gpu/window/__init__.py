# SPDX-License-Identifier: Apache-2.0
"""Convolution and pooling on a GPU: the rules, their tiles, products and sliding windows."""
