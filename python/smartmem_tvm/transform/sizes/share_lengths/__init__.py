# SPDX-License-Identifier: Apache-2.0
"""The pass by which sizes of one model run at the capacity of a larger one, and the masks that this needs."""
