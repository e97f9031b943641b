# SPDX-License-Identifier: Apache-2.0
"""Run work on a device in a worker process with a deadline, on this machine or on another one.

- `workers`: processes that run one job after the other, each with a deadline; a job that crashes or hangs does not
  affect the others.
- `devices`: the interface of a device, the deadlines, and the `Executor`, which runs jobs in workers that use devices.
  `deploy.this_machine` and `remote.tracked_devices` are the two kinds of devices.
- `readings`: the number of clock readings of all measurements.
- `faults`: whether a job or the machine is at fault.

Measurements for ``profile`` and ``tune``, judging and comparing are jobs: functions of some `Devices` and a
description, both picklable, which first compile and then request a device.
"""
