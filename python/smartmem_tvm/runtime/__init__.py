# SPDX-License-Identifier: Apache-2.0
"""Measure a compiled model while it runs: times of kernels and launches, the device's speed, the roofline."""
