# SPDX-License-Identifier: Apache-2.0
"""Passes that plan where tensors and weights lie, and when (FluidML 4, FlexNN 3)."""
