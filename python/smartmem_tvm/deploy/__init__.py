# SPDX-License-Identifier: Apache-2.0
"""Turn an IRModule into a model that runs: build, export, load, run, measure."""
