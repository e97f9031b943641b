# SPDX-License-Identifier: Apache-2.0
"""Rules for CPUs: register tiles over packed panels, vectors along memory."""
