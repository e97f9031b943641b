# SPDX-License-Identifier: Apache-2.0
"""What can be read off kernels and graphs: nothing here changes a module."""
