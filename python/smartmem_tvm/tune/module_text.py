# SPDX-License-Identifier: Apache-2.0
"""A kernel as a line of a file has it: what MetaSchedule writes names every node, and is packed to a tenth."""

from __future__ import annotations

import base64
import json
import zlib

from tvm.s_tir.meta_schedule.database import Workload


def module_text(workload: Workload) -> str:
    """A kernel in MetaSchedule's JSON, packed by zlib, in base64."""
    return base64.b64encode(zlib.compress(json.dumps(workload.as_json()).encode(), 9)).decode()


def workload_of(text: str) -> Workload:
    """What `module_text` was made from."""
    return Workload.from_json(json.loads(zlib.decompress(base64.b64decode(text))))
