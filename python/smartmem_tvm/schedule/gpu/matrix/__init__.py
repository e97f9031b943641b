# SPDX-License-Identifier: Apache-2.0
"""Products by matrix instructions: the rule, its tiles with their cost model, the path of an operand into fragments."""
