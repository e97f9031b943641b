# SPDX-License-Identifier: Apache-2.0
"""``smartmem rpc``: processes that say where they are, and what a tracker knows."""

import pytest

from rpc_processes import device, started, tracker, until


def test_a_tracker_knows_its_devices(smartmem, tmp_path):
    with tracker(tmp_path) as trackers, device(tmp_path, trackers, "desk") as desk:
        assert desk.facts["pid"] == desk.process.pid and desk.facts["key"] == "desk"
        query = ("rpc", "query", "--tracker", trackers.address, "--json")
        until(lambda: smartmem(*query).data["keys"].get("desk", {}).get("free"))
        outcome = smartmem("rpc", "query", "--tracker", trackers.address, "--json")
        assert outcome.data["keys"] == {
            "desk": {"devices": 1, "free": 1, "busy": 0, "pending": 0, "servers": [desk.address]}
        }
        shown = smartmem("rpc", "query", "--tracker", trackers.address)
        assert shown.code == 0 and desk.address in shown.out and "pending" in shown.out
        listed = smartmem("devices", "--tracker", trackers.address)
        assert listed.code == 0 and f"desk at {desk.address}" in listed.out and "~opencl" in listed.out
        until(lambda: smartmem(*query).data["keys"]["desk"]["free"])  # the session before has ended there too
        found = smartmem("devices", "--tracker", trackers.address, "--json").data["keys"]["desk"]
        assert [each["address"] for each in found["found"]] == [desk.address]


def test_a_tracker_without_devices_says_how_one_joins(smartmem, tmp_path):
    with tracker(tmp_path) as trackers:
        for command in (("rpc", "query"), ("devices",)):
            outcome = smartmem(*command, "--tracker", trackers.address)
            assert outcome.code == 0 and f"smartmem rpc server --tracker {trackers.address} --key NAME" in outcome.out


def test_the_address_is_printed_for_people_too(tmp_path):
    with started(tmp_path, "rpc", "server") as server:
        line = server.process.stdout.readline()
        assert line.startswith("Server on 127.0.0.1:") and line.endswith(".\n")


@pytest.mark.parametrize("threads", ["99999", "all"])
def test_a_server_does_not_start_with_threads_that_no_session_could_have(smartmem, monkeypatch, threads):
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    outcome = smartmem("rpc", "server")
    assert outcome.code == 2 and threads in outcome.err and "TVM_NUM_THREADS" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("query",), "give --tracker"),
        (("query", "--tracker", "127.0.0.1:1"), "No tracker answers at 127.0.0.1:1"),
        (("query", "--tracker", "nowhere"), "'nowhere' is no address"),
        (("server", "--tracker", "127.0.0.1:1"), "give --key"),
        (("server", "--host", "192.0.2.1"), "listen on 192.0.2.1"),
        (("tracker", "--port", "70000"), "port 70000"),
    ],
)
def test_what_is_wrong_is_one_sentence(smartmem, arguments, message):
    outcome = smartmem("rpc", *arguments)
    assert outcome.code == 2 and message in outcome.err and outcome.err.count("\n") == 1


def test_a_tracker_needs_tornado(smartmem, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = smartmem("rpc", "tracker")
    assert outcome.code == 2 and "pip install psutil cloudpickle tornado" in outcome.err
