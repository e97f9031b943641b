# SPDX-License-Identifier: Apache-2.0
"""What measurements taught: the profile store, and the search for better decisions of the schedule rules."""
