# SPDX-License-Identifier: Apache-2.0
"""What rules for every target share: what a rule is, loop nests, what is seen in a kernel, the pass that asks them."""
