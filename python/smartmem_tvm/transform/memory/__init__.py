# SPDX-License-Identifier: Apache-2.0
"""Where tensors and weights lie, and when (FluidML 4, FlexNN 3)."""
