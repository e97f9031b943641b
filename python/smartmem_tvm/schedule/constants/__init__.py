# SPDX-License-Identifier: Apache-2.0
"""Passes that bring constants into the forms that plans read: each asks `choose` what would become of a kernel."""
