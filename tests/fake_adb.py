# SPDX-License-Identifier: Apache-2.0
"""A fake phone in a folder, and an ``adb`` for it: its shell is this machine's, its paths are below the folder.

As a module, it makes the folder. As a program, it is ``adb``: it notes its arguments in ``calls``, and answers from
``table``.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ONE = "List of devices attached\nSERIAL1  device usb:1-1 product:p model:M device:d transport_id:1\n"
MACHINES = {"arm64-v8a": 183, "x86_64": 62}
_REGISTERS = """#!/bin/sh
echo starting "$@"
for option; do case $option in --key=*) key=${option#--key=};; --port=*) port=${option#--port=};; esac; done
[ "$SAYS" ] && { echo "$SAYS"; exit 1; }
# As TVM's: the port is text; and the first one is still closed.
echo "[[\\"server:$key\\", \\"127.0.0.1\\", \\"$((port + 1))\\"]]" >SERVERS
trap 'echo "[]" >SERVERS; exit' TERM
sleep 60 & wait
"""


class FakePhone:
    """The folder of a fake phone, and a test's access to it.

    ``table`` has ``devices`` (what ``adb devices`` prints), ``fail`` (first words of a call: what adb complains of),
    ``hang`` (first word of a call that does not return) and ``says`` (what the server says before it ends at once).
    """

    def __init__(self, root: Path, python: str = sys.executable):
        self.root = root
        self.servers = root / "servers"
        self.servers.write_text("[]")
        (root / "data/local/tmp").mkdir(parents=True)
        (root / "bin").mkdir()
        (root / "path").mkdir()
        self.program("path/adb", f'exec {python} -S {__file__} {root} "$@"')
        self.program("bin/dumpsys", 'printf "Battery:\\n  level: 80\\n  temperature: 287\\n"')
        self.program(
            "bin/getprop",
            'case $1 in *model) echo "Some Phone";; *abi) echo arm64-v8a;; *release) echo 14;; *) echo;; esac',
        )
        self.table()

    def program(self, name: str, text: str) -> None:
        """Add an executable to the phone's shell."""
        file = self.root / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def table(self, **entries) -> None:
        """Set adb's answers."""
        (self.root / "table").write_text(json.dumps({"devices": ONE, "fail": {}, **entries}))

    def file(self, name: str, text: str) -> None:
        """Add a file to the phone."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @property
    def calls(self) -> list[list[str]]:
        """Return the arguments of each call so far."""
        log = self.root / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def ports(self) -> list[str]:
        """Return the ports that are forwarded from and to the phone now."""
        return sorted(path.name for path in self.root.glob("ports-*"))

    def binary(self, name: str = "tvm_rpc", abi: str = "arm64-v8a") -> Path:
        """Write a stand-in of a program that a user would have built; only its header is read here."""
        header = b"\x7fELF\x02\x01\x01" + bytes(11) + MACHINES[abi].to_bytes(2, "little")
        path = self.root / f"{abi}-{name}"
        path.write_bytes(header + bytes(44))
        return path


def _adb(root: Path, words: list[str]) -> int:
    with (root / "calls").open("a") as log:
        log.write(json.dumps(words) + "\n")
    table = json.loads((root / "table").read_text())
    serial = "SERIAL1"
    if words[0] == "-s":
        serial, words = words[1], words[2:]
    for start, message in table["fail"].items():
        if " ".join(words).startswith(start):
            print(f"adb: error: {message}", file=sys.stderr)
            return 1
    if words[0] == table.get("hang"):
        time.sleep(60)
    return _COMMANDS[words[0]](root, table, serial, words[1:])


def _devices(root, table, serial, words) -> int:
    print("* daemon started successfully\n" + table["devices"])
    return 0


def _led(root, table, serial, words, direction) -> int:
    if words == ["--list"]:
        for path in root.glob(f"ports-{direction}-*"):
            print(path.read_text())
        return 0
    port = next(word for word in words if word.startswith("tcp:"))
    path = root / f"ports-{direction}-{port[4:]}"
    if words[0] == "--remove":
        if not path.exists():
            print(f"adb: error: listener '{port}' not found", file=sys.stderr)
            return 1
        path.unlink()
    elif path.exists() and "--no-rebind" in words:
        print("adb: error: cannot rebind existing socket", file=sys.stderr)
        return 1
    else:
        path.write_text(f"{serial} {port} {words[-1]}")
    return 0


def _push(root, table, serial, words) -> int:
    source, target = words
    target = _inside(root, target)
    Path(target).write_bytes(Path(source).read_bytes())
    if target.endswith("/tvm_rpc"):
        # A program for another CPU does not run here; this script takes its place.
        Path(target).write_text(_REGISTERS.replace("SERVERS", str(root / "servers")))
        Path(target).chmod(0o644)
    return 0


def _inside(root: Path, text: str) -> str:
    return re.sub(r"(?<![\w/])/(?=data/|sys/)", f"{root}/", text)


def _shell(root, table, serial, words) -> int:
    path = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SAYS": table.get("says", "")}
    done = subprocess.run(["sh", "-c", _inside(root, words[0])], env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout.replace(str(root), ""), end="")
    return done.returncode


_COMMANDS = {
    "devices": _devices,
    "push": _push,
    "shell": _shell,
    "forward": lambda *arguments: _led(*arguments, "forward"),
    "reverse": lambda *arguments: _led(*arguments, "reverse"),
}

if __name__ == "__main__":
    sys.exit(_adb(Path(sys.argv[1]), sys.argv[2:]))
