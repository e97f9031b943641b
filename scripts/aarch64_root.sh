#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder with Debian's Python for aarch64 and TVM's wheel for it, which qemu-aarch64-static runs on this machine:
#   scripts/aarch64_root.sh FOLDER PYTHON
# PYTHON's pip installs the wheels. Debian only: what to trust, and where packages are, comes from this machine's apt.
# Nothing of it is installed on this machine, and apt's own lists stay as they are.
set -eu
root=$1 python=$2
for program in apt-get dpkg-deb qemu-aarch64-static; do
  command -v "$program" >/dev/null || { echo "$program is missing: on Debian, apt-get install qemu-user-static" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$root"
: >"$work/status"  # nothing is installed there: apt resolves all that Python needs
options=(
  -qq -y -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Install-Recommends=0
  -o "Dir::State=$work/state" -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache"
  -o "APT::Sandbox::User=$(id -un)"
)
apt-get "${options[@]}" update
apt-get "${options[@]}" --download-only install python3 libstdc++6
for package in "$work"/cache/archives/*.deb; do
  dpkg-deb -x "$package" "$root"
done

version=$(basename "$(readlink -f "$root/usr/bin/python3")")  # python3.11
pins=$("$python" -c 'from smartmem_tvm._version import TVM_PINS as p; print(*(f"{k}=={v}" for k, v in p.items()))')
platforms=(manylinux_2_28_aarch64 manylinux_2_27_aarch64 manylinux_2_24_aarch64 manylinux_2_17_aarch64 manylinux2014_aarch64)
# shellcheck disable=SC2086  # two requirements
"$python" -m pip install --quiet --disable-pip-version-check --target "$root/site" --upgrade --only-binary=:all: \
  --implementation cp --python-version "${version#python}" "${platforms[@]/#/--platform=}" $pins
QEMU_LD_PREFIX=$root PYTHONPATH=$root/site qemu-aarch64-static "$root/usr/bin/python3" -c 'import numpy, tvm_ffi'
