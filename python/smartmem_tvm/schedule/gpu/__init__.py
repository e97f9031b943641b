# SPDX-License-Identifier: Apache-2.0
"""Schedule rules for GPUs: thread blocks, shared memory, registers."""
