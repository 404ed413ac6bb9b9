#!/usr/bin/env bash
# Installs what is missing, from Debian's or Ubuntu's packages and from PyPI.
#
#   scripts/install_packages.sh SET...     SET is build, demo, test or peers
#
# build: compiler and libraries. demo: those, and what scripts/demo.sh and scripts/bench use.
# test: all of them. peers: what scripts/bench compares with, as far as it can be installed, into
# build/venv-bench what is Python. Other Python packages go into build/venv. Where no CUDA toolkit is installed, cuda.h
# comes from PyPI and goes into build/cuda/include. Nothing is asked of apt or PyPI when everything
# is there.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$top/build/venv
cuda=$top/build/cuda
cuda_wheel='nvidia-cuda-runtime==13.*'

build_packages=(g++ cmake ninja-build pkg-config libfuse3-dev fuse3 nlohmann-json3-dev libxxhash-dev catch2)
demo_packages=(attr mount util-linux python3 python3-venv)
test_packages=(jq rsync mandoc shellcheck procps tar)
peer_packages=(squashfuse squashfs-tools fuse-zip zip archivemount)

die() { echo "install_packages.sh: $*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt_get() {
  # The lock: a machine that has just booted may still be running its own upgrade.
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null >/dev/null
}

install_debian() {
  local package missing=()
  command -v dpkg-query >/dev/null ||
    die "not a Debian or Ubuntu system; install by hand the equivalents of: $*"
  for package in "$@"; do
    case $(dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null) in
      installed*) ;;
      *) missing+=("$package") ;;
    esac
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    die "neither root nor sudo; run as root: apt-get install ${missing[*]}"
  echo "installing: ${missing[*]}" >&2
  # The package lists may be absent (containers) or so old that their files are gone.
  apt_get install --no-install-recommends -y "${missing[@]}" 2>/dev/null || {
    apt_get update
    apt_get install --no-install-recommends -y "${missing[@]}"
  }
}

# A venv whose Python has been upgraded away runs nothing: made anew.
make_venv() {
  "$venv/bin/python" -c 'import pip' 2>/dev/null || /usr/bin/python3 -m venv --clear "$venv"
}

# install_python NAME PIP_ARGUMENTS...: what was asked for is recorded in build/venv/NAME.installed.
install_python() {
  local stamp=$venv/$1.installed wanted
  shift
  wanted=$(printf '%s\n' "$@"; if [ "$1" = -r ]; then cat "$2"; fi)
  [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || return 0
  make_venv
  echo "installing into ${venv#"$top"/}: $*" >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" || return
  echo "$wanted" >"$stamp"
}

# Where CMake finds a toolkit's headers.
has_cuda_toolkit() {
  local nvcc folder
  nvcc=$(readlink -f "$(command -v nvcc || true)" || true)
  for folder in "${CUDAToolkit_ROOT:-}" "${CUDA_PATH:-}" "${nvcc%/bin/nvcc}" /usr/local/cuda /opt/cuda \
    /usr/local /usr; do
    if [ -n "$folder" ] && [ -f "$folder/include/cuda.h" ]; then return 0; fi
  done
  return 1
}

# The headers of a wheel, without its library: the build links to nothing of CUDA's.
download_cuda_headers() {
  install_debian python3 python3-venv &&
    make_venv &&
    echo "installing into build/cuda: cuda.h of $cuda_wheel" >&2 &&
    rm -rf "$cuda" &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 \
      --no-deps --only-binary :all: --target "$cuda/wheel" "$cuda_wheel" &&
    mv "$cuda"/wheel/nvidia/cu*/include "$cuda/include" &&
    rm -rf "$cuda/wheel" &&
    echo "$cuda_wheel" >"$cuda/installed"
}

# All else builds and runs without cuda.h, so nothing ends here.
install_cuda_headers() {
  if has_cuda_toolkit || [ "$(cat "$cuda/installed" 2>/dev/null)" = "$cuda_wheel" ]; then return 0; fi
  # A subshell, since what it calls may exit.
  (download_cuda_headers) ||
    echo "install_packages.sh: no cuda.h: safetensorfs will be built without cuda devices" >&2
}

# Each by itself, since a system may lack some.
install_peers() {
  local package
  for package in "${peer_packages[@]}"; do
    (install_debian "$package") || echo "install_packages.sh: no $package" >&2
  done
  (venv=$top/build/venv-bench && install_debian python3-venv && install_python peers ratarmount) ||
    echo "install_packages.sh: no ratarmount" >&2
}

[ "$#" -gt 0 ] || die "usage: install_packages.sh SET... (build, demo, test, peers)"
debian=() python=() peers=false
for set in "$@"; do
  case $set in
    build) debian+=("${build_packages[@]}") ;;
    demo) debian+=("${build_packages[@]}" "${demo_packages[@]}") python+=(demo) ;;
    test)
      debian+=("${build_packages[@]}" "${demo_packages[@]}" "${test_packages[@]}")
      python+=(test)
      ;;
    peers) peers=true ;;
    *) die "no set named $set (build, demo, test, peers)" ;;
  esac
done

if $peers; then install_peers; fi
[ "${#debian[@]}" -gt 0 ] || exit 0
install_debian "${debian[@]}"
install_cuda_headers
for set in ${python[@]+"${python[@]}"}; do
  case $set in
    demo) install_python demo numpy safetensors ml_dtypes ;;
    test) install_python test -r "$top/tests/requirements.txt" ;;
  esac
  # Editable: the client in the venv is the one in the tree.
  install_python client -e "$top/scripts/client"
done
