# SPDX-License-Identifier: Apache-2.0
"""Passes that write operators as loops which schedule rules can handle."""
