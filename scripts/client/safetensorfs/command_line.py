"""safetensorfsctl: the commands of a mount, with a progress bar and an exit status."""

import argparse
import json
import os
import sys

from .bar import Bar
from .errors import CommandError
from .mount import Mount

DESCRIPTION = """\
Loads tensors of a mounted safetensors file into a device's memory, and lets go of them.

  safetensorfsctl load /mnt/model cpu 'h.*'       returns when they are loaded
  safetensorfsctl load /mnt/model cuda:0 '*'      everything; what is there already is skipped
  safetensorfsctl verify /mnt/model cpu           compares what is loaded with the source
  safetensorfsctl unload /mnt/model cpu 'h.1?.*'
  safetensorfsctl status /mnt/model

MOUNT is a mount, or a STEM.tensors folder of a mounted folder. PATTERN is a glob over tensor
names: * (dots too), ? and [...]; every other character stands for itself. Quote it, or the shell
expands it. The exit status is 0, 1 after a failure (the reason is on stderr), 2 for wrong usage,
130 after Ctrl-C, which cancels."""


def parse_arguments(words):
    parser = argparse.ArgumentParser(
        prog="safetensorfsctl",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")

    def add(verb, text, run, patterns):
        command = verbs.add_parser(verb, help=text, description=text.capitalize() + ".")
        command.set_defaults(run=run)
        command.add_argument("mount", metavar="MOUNT", help="a mount, or a STEM.tensors in one")
        if patterns:
            command.add_argument("device", metavar="DEVICE", help="such as cpu, cuda:0")
            command.add_argument(
                "patterns", metavar="PATTERN", nargs=patterns, help="a glob over tensor names"
            )
        return command

    load = add("load", "load tensors into a device's memory, all or none", run_load, "+")
    load.add_argument("-q", "--quiet", action="store_true", help="no progress, no report")
    unload = add("unload", "unload tensors from a device", run_unload, "+")
    verify = add("verify", "compare what a device holds with the source", run_verify, "*")
    for command in unload, verify:
        command.add_argument("-q", "--quiet", action="store_true", help="no report")
    status = add("status", "tell what is loaded and what is under way", run_status, None)
    status.add_argument("--json", action="store_true", help="as the mount's .status has it")
    return parser.parse_args(words)


def run_load(mount, arguments):
    if arguments.quiet:
        return mount.load(arguments.device, arguments.patterns)
    with Bar(f"load {arguments.device}", sys.stderr) as bar:
        return mount.load(arguments.device, arguments.patterns, progress=bar.show)


def run_unload(mount, arguments):
    return mount.unload(arguments.device, arguments.patterns)


def run_verify(mount, arguments):
    return mount.verify(arguments.device, arguments.patterns)


def run_status(mount, arguments):
    status = mount.status()
    if arguments.json:
        return json.dumps(status, indent=2) + "\n"
    lines = [f"source {status['source']}"]
    lines += [
        f"source {source['path']}: {source['state']}"
        for source in status["sources"]
        if source["state"] != "unchanged"
    ]
    lines += [
        f"{device['name']}: {device['loaded_tensors']:,} tensors, "
        f"{device['loaded_nbytes']:,} bytes loaded, {device['held_nbytes']:,} held, "
        f"{device['leases']} leases"
        for device in status.get("devices", [])
    ]
    lines += [
        f"{load['device']}: {load['verb']} of pid {load['pid']}: "
        f"{load['nbytes_done']:,} of {load['nbytes_total']:,} bytes"
        for load in status.get("loads", [])
    ]
    lines += [f"warning: {warning}" for warning in status["warnings"]]
    return "\n".join(lines) + "\n"


def main(words=None):
    """Runs one command line (default: the process's). Returns the exit status."""
    arguments = parse_arguments(words)
    try:
        with Mount(arguments.mount) as mount:
            report = arguments.run(mount, arguments)
        if not getattr(arguments, "quiet", False):
            print(report, end="" if report.endswith("\n") else "\n", flush=True)
        return 0
    except KeyboardInterrupt:
        return _complain("cancelled", 130)
    except BrokenPipeError:
        # Whoever read the output has gone; Python must not flush into the pipe again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except CommandError as error:
        # The daemon's sentences name their subject; where it was not asked, the path is missing.
        return _complain(error.strerror if error.report else error, 1)
    except (OSError, ValueError) as error:
        return _complain(error, 1)


def _complain(sentence, status):
    print(f"safetensorfsctl: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
