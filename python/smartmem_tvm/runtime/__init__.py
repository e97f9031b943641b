# SPDX-License-Identifier: Apache-2.0
"""What happens while a compiled model runs."""
