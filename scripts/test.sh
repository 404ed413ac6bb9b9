#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test, with the sanitizers too.
#
#   scripts/test.sh [PRESET...]            default: release asan
#
# Ends with ctest's own summary; the exit status is not 0 where a build or a test fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Containers often lack the device, or have it for root only; tests mount as other users too.
make_fuse_usable() {
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  [ -c /dev/fuse ] || "${as_root[@]}" modprobe fuse 2>/dev/null || true
  [ -c /dev/fuse ] || "${as_root[@]}" mknod -m 666 /dev/fuse c 10 229
  [ "$(stat -c %a /dev/fuse)" = 666 ] || "${as_root[@]}" chmod 666 /dev/fuse
}

[ "$#" -gt 0 ] || set -- release asan

scripts/install_packages.sh test
make_fuse_usable
for preset in "$@"; do
  cmake --preset "$preset"
  cmake --build --preset "$preset"
done
for preset in "$@"; do
  ctest --preset "$preset"
done
