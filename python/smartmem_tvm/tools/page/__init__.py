# SPDX-License-Identifier: Apache-2.0
"""The page of ``smartmem report``: compiled models, tuning and measurements in one HTML file.

The steps, one module each::

    sources   read folders of compiled models, records of tuning, results of `bench` and of measurements
    network   a compiled model: operators before, kernels after, and the reason for each change
    lanes     columns for the lines between them
    tensors   memory and layout of each tensor, and memory use over time
    tuning    curves of a search
    devices   times of kernels and of whole networks on each device, and the gain of each technique
    html      the data as JSON in a page whose scripts draw it

None of these modules needs TVM.
"""
