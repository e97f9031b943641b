# SPDX-License-Identifier: Apache-2.0
"""A tracker and a server that several tests use and none harms."""

import pytest

from rpc_processes import device, tracker


@pytest.fixture(scope="session")
def shared_tracker(tmp_path_factory):
    with tracker(tmp_path_factory.mktemp("tracker")) as started:
        yield started


@pytest.fixture(scope="session")
def shared_device(shared_tracker, tmp_path_factory):
    with device(tmp_path_factory.mktemp("server"), shared_tracker, "shared") as started:
        yield started
