# SPDX-License-Identifier: Apache-2.0
"""The page of ``smartmem report``: what was compiled, tuned and measured, in one HTML file.

The steps, one module each::

    sources   read folders of compiled models, records of tuning, results of `bench` and of measurements
    network   a compiled model: operators before, kernels after, who became what and why
    lanes     columns for the lines between them
    tensors   where each tensor is and in which order, and the memory over time
    tuning    curves of a search
    devices   times of kernels and of whole networks on each device, and what each technique brings
    html      all of it as JSON in a page whose scripts draw it

Nothing here needs TVM.
"""
