"""Tries every way to change a mount; prints {attempt: errno name, or "succeeded"} as JSON.

usage: attempt.py FOLDER FILE SCRATCH    FILE is in FOLDER; SCRATCH is a writable folder elsewhere
"""

import errno
import json
import os
import stat
import sys


def attempts(folder, file, scratch):
    new = os.path.join(folder, "new")
    outside = os.path.join(scratch, "outside")

    def opening(flags, path=file):
        return lambda: os.close(os.open(path, flags, 0o644))

    yield "open for writing", opening(os.O_WRONLY)
    yield "open for reading and writing", opening(os.O_RDWR)
    yield "open for appending", opening(os.O_WRONLY | os.O_APPEND)
    yield "open with truncation", opening(os.O_WRONLY | os.O_TRUNC)
    yield "open read-only with truncation", opening(os.O_RDONLY | os.O_TRUNC)
    yield "create", opening(os.O_WRONLY | os.O_CREAT, new)
    yield "create exclusively", opening(os.O_WRONLY | os.O_CREAT | os.O_EXCL, new)
    yield "create unnamed", opening(os.O_WRONLY | os.O_TMPFILE, folder)
    yield "create a dot file", opening(os.O_WRONLY | os.O_CREAT, os.path.join(folder, ".new"))
    yield "mkdir", lambda: os.mkdir(new)
    yield "mknod of a file", lambda: os.mknod(new, stat.S_IFREG | 0o644)
    yield "mkfifo", lambda: os.mkfifo(new)
    yield "symlink", lambda: os.symlink(file, new)
    yield "link within", lambda: os.link(file, new)
    yield "rename within", lambda: os.rename(file, new)
    yield "rename onto itself's neighbour", lambda: os.rename(file, file + ".other")
    yield "unlink", lambda: os.unlink(file)
    yield "rmdir of the folder", lambda: os.rmdir(folder)
    yield "chmod", lambda: os.chmod(file, 0o777)
    yield "chmod of the folder", lambda: os.chmod(folder, 0o777)
    yield "chown", lambda: os.chown(file, 12345, 12345)
    yield "chown of the folder", lambda: os.chown(folder, 12345, 12345)
    yield "truncate to nothing", lambda: os.truncate(file, 0)
    yield "truncate to more", lambda: os.truncate(file, 1 << 40)
    yield "utimes", lambda: os.utime(file, (1, 1))
    yield "utimes to now", lambda: os.utime(file)
    yield "utimes of the folder", lambda: os.utime(folder, (1, 1))
    yield "setxattr", lambda: os.setxattr(file, "user.new", b"x")
    yield "setxattr of ours", lambda: os.setxattr(file, "user.safetensors.dtype", b"F64")
    yield "setxattr of the folder", lambda: os.setxattr(folder, "user.new", b"x")
    yield "removexattr", lambda: os.removexattr(file, "user.safetensors.dtype")
    yield "rename out", lambda: os.rename(file, outside)
    yield "link out", lambda: os.link(file, outside)


def outcome(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "succeeded"


if __name__ == "__main__":
    print(json.dumps({name: outcome(action) for name, action in attempts(*sys.argv[1:])}))
