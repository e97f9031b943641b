# SPDX-License-Identifier: Apache-2.0
"""The networks of models/: how each is built, called and given random weights.

A network that is in no package has its PyTorch definition here, in a file of its own whose ``build()``
returns the module; ``packages`` calls those that are in one.
"""
