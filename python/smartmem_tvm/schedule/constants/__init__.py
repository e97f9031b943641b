# SPDX-License-Identifier: Apache-2.0
"""Passes that bring constants into the forms that plans read; `choose` tells them which rule would take a kernel."""
