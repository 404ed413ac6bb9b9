"""The exceptions of this package that are not a built-in one."""


class MountError(OSError):
    """A folder is not a mount that this client can read, or its sources cannot be mapped.

    errno and filename are set as in any OSError; the message names the folder, what is wrong
    with it and what to do.
    """

    def __str__(self):
        return f"{self.filename}: {self.strerror}"


class CommandError(OSError):
    """The daemon has refused a command, or it failed, or was cancelled (errno EINTR).

    errno:    EINVAL syntax, ENOENT nothing matches, ENODEV no such device, ENOMEM, EBUSY leased,
              ESTALE the source has changed, EIO the device or the source failed, EINTR
    strerror: the daemon's sentence
    filename: the control file
    report:   everything that the daemon says about the script, lines that succeeded included
    """

    def __init__(self, errno, sentence, control, report=""):
        super().__init__(errno, sentence, control)
        self.report = report

    def __reduce__(self):
        return type(self), (self.errno, self.strerror, self.filename, self.report)

    def __str__(self):
        return f"{self.filename}: {self.strerror}"
