# SPDX-License-Identifier: Apache-2.0
"""Tuning by measurement: the profile store, and the search for better decisions of the schedule rules."""
