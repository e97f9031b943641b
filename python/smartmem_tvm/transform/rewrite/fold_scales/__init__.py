# SPDX-License-Identifier: Apache-2.0
"""Scales and shifts done in the weights before or after them: two passes and what they share."""
