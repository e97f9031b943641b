# SPDX-License-Identifier: Apache-2.0
"""Passes that fold scales and shifts into the weights before or after them, and their shared functions."""
