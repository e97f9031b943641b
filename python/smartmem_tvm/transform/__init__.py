# SPDX-License-Identifier: Apache-2.0
"""Relax passes, one per file; a pass never imports another pass."""
