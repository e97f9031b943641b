# SPDX-License-Identifier: Apache-2.0
"""Use devices of other machines and other processes over TVM's RPC."""
