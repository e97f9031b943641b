# SPDX-License-Identifier: Apache-2.0
"""From an IRModule to something that runs: targets, building, exporting, measuring."""
