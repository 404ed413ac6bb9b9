"""--help, README.md, the man page and the program say the same."""

import json
import re
import shutil

import pytest

from commands import BINARY, REPOSITORY, run, write_model

MAN_PAGE = REPOSITORY / "scripts/install/safetensorfs.1"

# A value for each option that takes one.
VALUES = {"uid": "0", "gid": "0", "umask": "022", "fsname": "model", "max_threads": "2"}

# What mount(8) and fstab hand to any filesystem.
MOUNT_WORDS = """
rw defaults auto noauto user users nofail _netdev x-systemd.automount comment=model
relatime strictatime nodiratime lazytime
dev nodev suid nosuid exec noexec async sync atime noatime
""".split()


def option_of(words):
    """`-o uid=N` is the option "-o uid=", `--check SOURCE` is "--check"."""
    words = words.split()
    if words[0] == "-o":
        return "-o " + re.sub("=.*", "=", words[1])
    return words[0]


def matches(pattern, text):
    return re.findall(pattern, text, re.MULTILINE)


# The three documents, each as its set of options and its set of exit statuses.

def help_text():
    result = run(BINARY, "--help")
    assert result.returncode == 0, result.stderr
    return result.stdout


def from_help():
    text = help_text()
    options = matches(r"^  (-.*?)(?:  |$)", text)
    return ({option_of(option) for entry in options for option in entry.split(", ")},
            set(matches(r"^  (\d+)  ", text)))


def readme_column(heading):
    """The code spans, or else the text, in the first cells of the tables headed so."""
    cells, inside = [], False
    for line in (REPOSITORY / "README.md").read_text().splitlines():
        if not line.startswith("|"):
            inside = False
        elif re.match(rf"\|\s*{heading}\s*\|", line):
            inside = True
        elif inside and not re.match(r"\|[\s:-]+\|", line):
            cell = line.split("|")[1].strip()
            cells += re.findall(r"`([^`]+)`", cell) or [cell]
    assert cells, f"README.md has no table headed | {heading} |"
    return cells


def from_readme():
    return ({option_of(cell) for cell in readme_column("option")},
            set(readme_column("status")))


def from_man_page():
    result = run("mandoc", "-Tascii", "-Owidth=120", str(MAN_PAGE))
    assert result.returncode == 0, result.stderr
    text = re.sub(".\b", "", result.stdout)
    sections = dict(zip(*[iter(re.split(r"^([A-Z][A-Z ]+)$", text, flags=re.MULTILINE)[1:])] * 2))
    return ({option_of(option) for option in
             matches(r"^     (-.*?)(?:  |$)", sections["OPTIONS"])},
            set(matches(r"^     (\d+)(?: |$)", sections["EXIT STATUS"])))


needs_mandoc = pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed")


def test_readme_lists_the_options_of_help():
    assert from_readme()[0] == from_help()[0]


def test_readme_lists_the_exit_statuses_of_help():
    assert from_readme()[1] == from_help()[1]


@needs_mandoc
def test_the_man_page_lists_the_options_of_help():
    assert from_man_page()[0] == from_help()[0]


@needs_mandoc
def test_the_man_page_lists_the_exit_statuses_of_help():
    assert from_man_page()[1] == from_help()[1]


@needs_mandoc
def test_the_man_page_has_no_faults():
    # Other systems' pages need not be there for it to refer to them.
    result = run("mandoc", "-Tlint", "-Wwarning", str(MAN_PAGE))
    assert "safetensorfs.1" not in result.stdout + result.stderr


# The program.

def accepts(option, tmp_path):
    """An option is taken where the missing source is the first thing wrong."""
    missing, mountpoint = tmp_path / "missing.safetensors", tmp_path
    words = option.split()
    if words[0] == "-o" and words[1].endswith("="):
        words[1] += VALUES[words[1][:-1]]
    if option in ("--help", "--version"):
        return run(BINARY, option).returncode == 0
    if option == "--check":
        return run(BINARY, option, missing).returncode == 30
    result = run(BINARY, *words, missing, mountpoint)
    return result.returncode == 30 and str(missing) in result.stderr


def test_the_program_takes_every_documented_option(tmp_path):
    refused = [option for option in sorted(from_help()[0]) if not accepts(option, tmp_path)]
    assert refused == []


def test_the_program_takes_what_mount_passes(tmp_path):
    refused = [word for word in MOUNT_WORDS if not accepts(f"-o {word}", tmp_path)]
    assert refused == []


def test_the_program_refuses_what_is_not_documented(tmp_path):
    for words in (["-x"], ["--no-such-option"], ["-o", "no_such_option"], ["-o", "uid=nobody?"]):
        result = run(BINARY, *words, tmp_path / "missing.safetensors", tmp_path)
        assert result.returncode == 1, (words, result)
        assert "usage: safetensorfs" in result.stderr


def test_every_documented_exit_status_occurs(tmp_path):
    model, broken, index = (tmp_path / name for name in
                            ("a.safetensors", "b.safetensors", "c.safetensors.index.json"))
    write_model(model)
    broken.write_bytes(b"\0" * 4)
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "absent.safetensors"}}))
    seen = {str(run(BINARY, *words).returncode) for words in (
        ["--check", model],
        [],
        [model, tmp_path / "no-such-folder"],
        ["--check", tmp_path / "absent.safetensors"],
        ["--check", broken],
        ["--check", index],
    )}
    assert seen == from_help()[1]


# The scripts.

def shell_scripts():
    return [*REPOSITORY.glob("scripts/*.sh"), REPOSITORY / ".ci/run",
            REPOSITORY / "scripts/install/mount.safetensorfs.in"]


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize("script", shell_scripts(), ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    result = run("shellcheck", "-x", str(script))
    assert result.returncode == 0, result.stdout
