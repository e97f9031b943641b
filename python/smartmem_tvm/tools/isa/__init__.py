# SPDX-License-Identifier: Apache-2.0
"""Machine code of kernels for Adreno, as Mesa's compiler ir3 makes it, without the phone."""
