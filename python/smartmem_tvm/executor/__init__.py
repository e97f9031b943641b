# SPDX-License-Identifier: Apache-2.0
"""Work on a device runs in a worker with a deadline, on this machine or on another one.

- `workers`: processes that do one job after the other, each with a deadline; what crashes or hangs costs nobody else.
- `devices`: what a job gets of a device, whose deadlines there are, and the `Executor`, which has jobs done by workers
  that use devices. `deploy.this_machine` and `remote.tracked_devices` are the two kinds of devices.
- `readings`: how often clocks are read, for all that is measured.
- `faults`: whether a job or the machine is at fault.

Measuring for ``profile`` and ``tune``, judging and comparing are jobs: functions of some `Devices` and a description,
both picklable, which compile first and ask for a device then.
"""
