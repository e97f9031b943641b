# SPDX-License-Identifier: Apache-2.0
"""The papers' tables as literal data, without computation."""
