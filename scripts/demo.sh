#!/usr/bin/env bash
# Builds safetensorfs, mounts a model, reads it with everyday tools, loads a tensor (to the GPU cuda:0
# where there is one, else to cpu) and unmounts it.
#
#   scripts/demo.sh [SOURCE]     SOURCE: a file, an index, a folder; default: a sample it makes
#
# Installs what is missing (as root or with sudo). Leaves nothing behind but build/.
set -eu

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

die() { echo "demo.sh: $*" >&2; exit 1; }

# Runs a command and shows it as a terminal would.
show() {
  printf '%s\n' "$1" | sed '1s/^/$ /; 2,$s/^/> /'
  eval "$1"
}

cleanup() {
  trap '' INT TERM HUP
  cd /
  # Interrupted while mounting, the mount may appear only now.
  local try
  for try in 1 2 3 4 5 6 7 8 9 10; do
    [ -d "$work/mnt" ] || break
    rmdir "$work/mnt" 2>/dev/null && break
    fusermount3 -u -q "$work/mnt" 2>/dev/null || sleep 0.2
    [ "$try" -lt 10 ] || fusermount3 -u -q -z "$work/mnt" || true
  done
  rmdir "$work/mnt" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}

build() {
  echo "building $top/build/release/safetensorfs" >&2
  (
    cd "$top"
    cmake --preset release && cmake --build --preset release --target safetensorfs
  ) >"$work/build.log" 2>&1 || {
    tail -n 40 "$work/build.log" >&2
    die "the build failed"
  }
}

# Prints path, name, dtype and source of one tensor, each ended by NUL: the largest up to 64 MiB
# that NumPy has a type for, else the smallest that is not empty.
choose_tensor() {
  python3 - "$1" <<'EOF'
import json, sys
with open(sys.argv[1]) as f:
    tensors = json.load(f)["tensors"]
usable = [t for t in tensors if t["nbytes"] and len(t["path"]) < 200 and "\0" not in t["name"]]
plain = [t for t in usable if t["nbytes"] <= 64 << 20 and t["dtype"][0] in "FIU"
         and t["dtype"][1:] in ("8", "16", "32", "64")]
if usable:
    chosen = (max(plain, key=lambda t: t["nbytes"]) if plain
              else min(usable, key=lambda t: t["nbytes"]))
    for key in "path", "name", "dtype", "source":
        sys.stdout.write(chosen[key] + "\0")
EOF
}

[ "$#" -le 1 ] || die "usage: demo.sh [SOURCE]"
[ -c /dev/fuse ] || die "/dev/fuse is absent: load the kernel's fuse module, or give the container the device"
source=
if [ "$#" = 1 ]; then
  [ -e "$1" ] || die "$1: no such file or folder"
  # Links stay as they are: a checkpoint in a cache is found by the link's name.
  source=$(realpath -s -- "$1")
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/safetensorfs-demo.XXXXXX")
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

"$top/scripts/install_packages.sh" demo
build
PATH=$top/build/release:$top/build/venv/bin:$PATH
cd "$work"
mkdir mnt
if [ -z "$source" ]; then
  python3 "$top/scripts/make_sample.py" model.safetensors
  source=model.safetensors
fi

show "safetensorfs $(printf %q "$source") mnt"
folder=mnt
if [ -d "$source" ]; then
  show "ls -la mnt"
  folder=$(find mnt -type d -name '*.tensors' -print -quit)
  if [ -z "$folder" ]; then
    show "cat mnt/.status"
    die "$source: no valid checkpoint in it"
  fi
fi

here=$(printf %q "$folder")
# Real models have thousands of tensors.
if [ "$(find "$folder" -maxdepth 1 | wc -l)" -gt 60 ]; then
  show "ls -la $here | head -n 20"
  show "head -n 20 $here/.summary"
else
  show "ls -la $here"
  show "cat $here/.summary"
fi

mapfile -d '' -t tensor < <(choose_tensor "$folder/.index.json")
if [ "${#tensor[@]}" = 4 ]; then
  file=$(printf %q "$folder/${tensor[0]}")
  npy=$(printf %q "$folder/.npy/${tensor[0]}.npy")
  name=$(printf %q "${tensor[1]}")
  checkpoint=$(printf %q "${tensor[3]#"$PWD"/}")
  show "getfattr -d $file"

  show "cat $file | sha256sum" | tee mounted
  show "python3 - $checkpoint $name <<'EOF'
import hashlib, json, struct, sys
with open(sys.argv[1], 'rb') as f:
    length, = struct.unpack('<Q', f.read(8))
    begin, end = json.loads(f.read(length))[sys.argv[2]]['data_offsets']
    f.seek(8 + length + begin)
    print(hashlib.sha256(f.read(end - begin)).hexdigest(), '', '-')
EOF" | tee direct
  [ "$(tail -n 1 mounted)" = "$(tail -n 1 direct)" ] || die "the two digests differ"

  if [ "${tensor[2]}" = BF16 ]; then
    show "python3 -c 'import sys, numpy as np, ml_dtypes
a = np.load(sys.argv[1], mmap_mode=\"r\").view(ml_dtypes.bfloat16)
print(a.dtype, a.shape, a.ravel()[:3])' $npy"
  else
    show "python3 -c 'import sys, numpy as np
a = np.load(sys.argv[1], mmap_mode=\"r\")
print(a.dtype, a.shape, a.ravel()[:3])' $npy"
  fi

  device=cpu
  # Asks for the GPUs, which takes a moment where there are some.
  [ ! -d "$folder/.devices/cuda:0" ] || device=cuda:0
  show "echo load $device $name > $here/.control; cat $here/.control"
  show "cmp $file $(printf %q "$folder/.devices/$device/data/${tensor[0]}") && echo equal"
  show "echo verify $device > $here/.control; cat $here/.control"
  show "safetensorfsctl status $here"
  if [ "$device" = cpu ]; then
    show "python3 -c 'import sys, safetensorfs
with safetensorfs.Mount(sys.argv[1]) as mount:
    a = mount.attach(\"cpu\", sys.argv[2])
    print(a.dtype, a.shape)
    del a' $here $name"
  fi
  show "echo unload $device $name > $here/.control; cat $here/.control"
else
  echo "($source holds no tensor with data to read)"
fi

if [ "$(id -u)" = 0 ]; then
  show "umount mnt"
else
  show "fusermount3 -u mnt"
fi
