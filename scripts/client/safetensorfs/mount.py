"""One mounted checkpoint: its tensors, its devices and commands to it."""

import contextlib
import errno
import json
import os
import threading

from . import control
from .devices import module_of
from .errors import MountError
from .index import TensorInfo, check_folder, read_file, read_index
from .progress import Progress


class Mount:
    """A mount, or a `<stem>.tensors` folder of a mounted folder.

    Holds no descriptor of the mount, so that it does not keep it busy; only tensors that have
    been attached do. What is mounted there is taken to stay the same: make a new Mount after
    mounting anew.

    Patterns are globs over tensor names or file names, one string or several: `*` (dots and
    slashes too), `?` and `[...]`, everything else stands for itself. names are tensor names,
    whatever characters they hold. A device is "cpu" or one of the daemon's "cuda:N"; load takes
    several with commas between them. Commands return the daemon's report and raise CommandError
    with its sentence.

    Methods may be called from several threads at once; only close() must be the last one.
    Ctrl-C cancels a command that runs in the main thread; in other threads it runs to its end,
    as any system call does.
    """

    def __init__(self, path):
        """Raises MountError if path is no mount, or no folder of one checkpoint."""
        self.path = os.fsdecode(path)
        check_folder(self.path)
        self._index = None
        self._attachments, self._prune_at, self._lock = [], 64, threading.Lock()
        self._closed = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"Mount({self.path!r})"

    def status(self):
        """The parsed .status: sources, devices, loads in flight with bytes done, warnings."""
        return self._read_json(".status")

    def devices(self):
        """{device: info}, from .devices/*/info: name, total, free, loaded and held bytes.

        The first call may take seconds on a machine with GPUs, which are looked for then.
        """
        self._check_open()
        folder = os.path.join(self.path, ".devices")
        return {
            name: self._read_json(os.path.join(".devices", name, "info"))
            for name in sorted(os.listdir(folder))
        }

    def tensors(self):
        """{name: TensorInfo}, in the order of the listing. Read once."""
        self._check_open()
        return dict(self._tensors())

    def load(self, device, patterns=(), *, names=(), progress=None):
        """Loads tensors into a device's memory, all or none; skips what is there already.

        progress(bytes_done, bytes_total) is called some times a second from another thread
        while this one waits, and a last time from this one. An exception of it ends the calls,
        not the load, and is raised when the load has ended.
        """
        if not patterns and not names:
            raise ValueError("nothing to load: give patterns or names")
        return self._run("load", device, patterns, names, progress)

    def unload(self, device, patterns=(), *, names=()):
        """Unloads tensors; EBUSY where somebody is attached, with pid and program."""
        if not patterns and not names:
            raise ValueError("nothing to unload: give patterns or names")
        return self._run("unload", device, patterns, names)

    def verify(self, device, patterns=(), *, names=()):
        """Compares what a device holds with the source; all of it without patterns and names."""
        return self._run("verify", device, patterns, names)

    def attach(self, device, name, framework=None):
        """A loaded tensor where it is, without a copy: an array as load_file() makes them.

        It holds a lease: until the array and all views of it have died, the daemon unloads it
        for nobody. MountError where it is not loaded.

        On cpu it costs one mapping and two descriptors per tensor, and in a forked child the array
        stays valid, while the lease is the parent's. On cuda, tensors that the daemon keeps in one
        slab share one opened memory and one descriptor, which are closed when the last of them has
        died; in a forked child they are unusable, as all of CUDA is.
        """
        module = module_of(device)
        self._check_open()
        tensor = self._tensors().get(name)
        if tensor is None:
            raise MountError(errno.ENOENT, f"holds no tensor {name!r}", self.path)
        array, attachment = module.attach(self.path, device, tensor, self._sources(), framework)
        if attachment is not None:
            self._remember(attachment)
        return array

    def close(self):
        """Drops what this object keeps. Returns how many attached tensors live on.

        Those stay valid and leased until they die: nothing is unmapped under a live tensor.
        Closing twice is allowed.
        """
        self._closed, self._index = True, None
        self._attachments = [a for a in self._attachments if a.alive]
        return len(self._attachments)

    def _remember(self, attachment):
        """Forgets the dead whenever there are twice as many as were alive last time."""
        with self._lock:
            self._attachments.append(attachment)
            if len(self._attachments) >= self._prune_at:
                alive = [a for a in self._attachments if a.alive]
                self._attachments, self._prune_at = alive, max(64, 2 * len(alive))

    def _check_open(self):
        if self._closed:
            raise ValueError(f"{self!r} is closed")

    def _read_json(self, name):
        self._check_open()
        path = os.path.join(self.path, name)
        return json.loads(read_file(path).decode("utf-8", "surrogateescape"))

    def _read_index(self):
        if self._index is None:
            index = read_index(self.path)
            sources = {source["path"]: source for source in index["sources"]}
            tensors = {
                tensor["name"]: TensorInfo(
                    tensor["name"],
                    tensor["path"],
                    tensor["dtype"],
                    tuple(tensor["shape"]),
                    tensor["nbytes"],
                    tensor["source"],
                    tensor["offset"],
                )
                for tensor in index["tensors"]
            }
            self._index = sources, tensors
        return self._index

    def _sources(self):
        return self._read_index()[0]

    def _tensors(self):
        return self._read_index()[1]

    def _run(self, verb, device, patterns, names, progress=None):
        self._check_open()
        patterns = [patterns] if isinstance(patterns, str) else patterns
        names = [names] if isinstance(names, str) else names
        words = [verb, control.literal(device)]
        words += map(control.glob, patterns)
        words += (control.literal(self._without_nul(name)) for name in names)
        reports = Progress(self.status, progress) if progress else contextlib.nullcontext()
        with reports:
            return control.run(self.path, " ".join(words))

    def _without_nul(self, name):
        """Commands take file names too, in which NUL is escaped."""
        tensor = self._tensors().get(name) if "\0" in name else None
        return tensor.path if tensor else name
