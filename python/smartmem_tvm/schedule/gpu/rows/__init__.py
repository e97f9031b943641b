# SPDX-License-Identifier: Apache-2.0
"""Row-wise kernels on a GPU: the rule, and the distribution of rows over threads."""
