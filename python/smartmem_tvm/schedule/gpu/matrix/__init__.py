# SPDX-License-Identifier: Apache-2.0
"""Products by matrix instructions: the rule, its tiles, the path of an operand into fragments."""
