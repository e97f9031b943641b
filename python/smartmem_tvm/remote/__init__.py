# SPDX-License-Identifier: Apache-2.0
"""Devices of other machines and other processes, over TVM's RPC."""
