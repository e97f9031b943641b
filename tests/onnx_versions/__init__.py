# SPDX-License-Identifier: Apache-2.0
"""Every operator of ONNX in every version of its schema: ``cases`` and their families, ``versions`` runs them."""
