# SPDX-License-Identifier: Apache-2.0
"""Rules for GPUs: work-groups, shared memory, registers."""
