#!/usr/bin/env bash
# Checks and measures the cuda devices on a machine with a GPU, which needs neither FUSE nor a
# network nor a compiler.
#
#   scripts/gpu_check.sh build         builds build/gpu_check/gpu_check, to be carried there
#   scripts/gpu_check.sh [OPTION...]   the whole check; --help shows the options
#
# It takes a copy of this repository with build/gpu_check, and two minutes or three.
#
# The program needs no library but glibc (2.36). Python 3.10 or later runs the check; PyTorch, CuPy
# and safetensors are used where they can be imported. PYTHON names another Python, GPU_CHECK
# another folder of the program. Exit status: 0; 1 something failed; 77 no GPU.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
built=$top/build/portable

build() {
  local xxhash
  "$top/scripts/install_packages.sh" build
  xxhash=$(pkg-config --variable=libdir libxxhash)/libxxhash.a
  # Its own code and glibc's are all that it needs there.
  cmake -S "$top" -B "$built" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSAFETENSORFS_FUSE=OFF \
    -Dpkgcfg_lib_xxhash_xxhash="$xxhash" \
    -DCMAKE_EXE_LINKER_FLAGS="-static-libstdc++ -static-libgcc"
  cmake --build "$built" --target gpu_check
  mkdir -p "$top/build/gpu_check"
  strip -o "$top/build/gpu_check/gpu_check" "$built/tests/gpu_check/gpu_check"
  ls -l "$top/build/gpu_check/gpu_check"
}

if [ "${1:-}" = build ]; then
  build
  exit
fi

program=${GPU_CHECK:-$top/build/gpu_check}/gpu_check
[ -x "$program" ] || {
  echo "gpu_check.sh: $program: not there; build it with scripts/gpu_check.sh build" >&2
  exit 1
}
python=${PYTHON:-$top/build/venv/bin/python}
[ -x "$python" ] || python=python3
exec "$python" "$top/scripts/gpu_check" --program "$program" "$@"
