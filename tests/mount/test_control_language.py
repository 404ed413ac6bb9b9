"""Commands written by shells, tools and Python, and what .control says of them afterwards."""

import mmap
import os
import re
import stat

import pytest

from checkpoints import tensor, write
from commands import DEVICE, command, control_of, holds, refusal, report
from daemon import OTHER_GID, output_of, run

LAYERS = [f"h.{n}.w" for n in range(40)]
NAMES = [*LAYERS, "wte", "a/b", ".dot", "100%", "H.0.W"]


@pytest.fixture
def model(folder, mount):
    return mount(write(folder / "m.safetensors", [tensor(name) for name in NAMES]).path)


SCRIPT = f"""
cd "$1" || exit 9
echo 'load {DEVICE} h.1.* wte' > .control || exit 1
echo 'verify {DEVICE}' >> .control || exit 2
printf 'load {DEVICE} h.2.w\\nunload {DEVICE} h.1.*\\n' > .control || exit 3
cat > .control <<'END' || exit 4
# what follows is one more

load {DEVICE} a/b
END
exec 3<>.control
echo 'load {DEVICE} h.3.w' >&3 || exit 5
cat <&3
exec 3>&-
echo 'load {DEVICE} nothing.*' > .control && exit 6
echo 'load {DEVICE} nothing.*' >> .control && exit 7
cat .control
"""


@pytest.mark.parametrize("shell", ["bash", "dash", "sh"])
def test_a_shell_script_commands_and_sees_the_outcome(model, shell):
    result = run(shell, "-c", SCRIPT, shell, model)
    assert result.returncode == 0, result
    first, last = result.stdout.splitlines()
    assert "load" in first and "1 tensor" in first
    assert "nothing.*" in last
    assert holds(model, "wte", "h.2.w", "a/b", "h.3.w")


def test_a_shell_script_stops_where_it_is_told_to(model):
    first, second = (f"echo load {DEVICE} {name} > .control" for name in ("wte", "x"))
    script = f"set -e; cd $1; {first}; {second}; echo >&2 on"
    result = run("bash", "-c", script, "bash", model)
    assert result.returncode != 0 and "on" not in result.stderr.split()
    assert "No such file or directory" in result.stderr
    assert holds(model, "wte")


def test_python_commands_through_buffered_and_raw_files(model):
    with open(control_of(model), "w") as file:
        print(f"load {DEVICE} h.1*", file=file)
        print(f"unload {DEVICE} h.1.w", file=file)
    assert holds(model, *(f"h.{n}.w" for n in range(10, 20)))
    with open(control_of(model), "wb", buffering=0) as file:
        line = f"unload {DEVICE} *\n".encode()
        assert file.write(line) == len(line)
    assert holds(model)
    with open(control_of(model), "a") as file:
        file.write(f"load {DEVICE} wte\n")
    assert holds(model, "wte")


def test_a_python_file_raises_at_close_what_a_line_raised(model):
    with pytest.raises(FileNotFoundError), open(control_of(model), "w") as file:
        file.write(f"load {DEVICE} wte\nload {DEVICE} nothing\nload {DEVICE} h.0.w\n")
    assert holds(model, "wte")


@pytest.mark.parametrize("tool", [
    "cat {0} > .control", "cat {0} >> .control", "cp {0} .control", "tee .control < {0}",
    "tee -a .control < {0}", "dd if={0} of=.control", "dd if={0} of=.control conv=notrunc bs=4k",
    "dd if={0} of=.control bs=8192", "dd if={0} bs=1M > .control", "sed p\\;d {0} > .control",
    "awk 1 {0} > .control", "awk '{{print > \".control\"}}' {0}", "grep '' {0} > .control",
    "while read -r line; do echo \"$line\"; done < {0} > .control",
    "xargs -d '\\n' printf '%s\\n' < {0} > .control", "head -n 1000 {0} > .control",
    "python3 -c 'import shutil, sys; shutil.copyfile(sys.argv[1], \".control\")' {0}",
])  # fmt: skip
def test_tools_hand_over_a_long_script_whole(model, folder, tool):
    lines = [f"load {DEVICE} {name} # {'.' * (61 + 7 * n)}" for n, name in enumerate(LAYERS)]
    (folder / "script").write_text("\n".join([*lines, f"unload {DEVICE} h.0.w h.1*", ""]))
    result = run("bash", "-c", tool.format(folder / "script"), cwd=model.path)
    assert result.returncode == 0, result.stderr
    assert holds(model, *(n for n in LAYERS if n != "h.0.w" and not n.startswith("h.1")))
    assert len(report(model).splitlines()) == len(lines) + 1


def padded(line, size):
    """A script of this size whose last line has no newline."""
    comment = "#" + "c" * (size - len(line) - 2) + "\n"
    return (comment + line).encode()


@pytest.mark.parametrize("size", [512, 4096, 8192, 131072])
def test_a_line_cut_by_a_buffer_waits_for_the_next_write(model, size):
    control = os.open(control_of(model), os.O_WRONLY)
    os.write(control, padded(f"load {DEVICE} w", size))
    assert holds(model)
    os.write(control, f"te\nload {DEVICE} h.0.w\n".encode())
    assert holds(model, "wte", "h.0.w")
    first, second = f"load {DEVICE} h.1.w h.2".encode(), f".w\nload {DEVICE} h.3.w\n".encode()
    os.write(control, b"#".ljust(size - len(first) - 1, b".") + b"\n" + first)
    assert holds(model, "wte", "h.0.w")
    os.write(control, second)
    assert holds(model, "wte", "h.0.w", "h.1.w", "h.2.w", "h.3.w")
    os.close(control)


@pytest.mark.parametrize("size", [512, 4096, 8192])
def test_a_line_cut_by_a_buffer_is_run_by_the_close(model, size):
    control = os.open(control_of(model), os.O_WRONLY)
    os.write(control, padded(f"load {DEVICE} wte", size))
    assert holds(model)
    os.close(control)
    assert holds(model, "wte")
    control = os.open(control_of(model), os.O_WRONLY)
    os.write(control, padded(f"load {DEVICE} nothing", size))
    with pytest.raises(FileNotFoundError):
        os.close(control)
    assert "nothing" in report(model)


def test_a_last_line_without_newline_counts_at_once(model):
    control = os.open(control_of(model), os.O_WRONLY)
    os.write(control, f"load {DEVICE} wte".encode())
    assert holds(model, "wte")
    os.write(control, f"load {DEVICE} h.0.w".encode())
    assert holds(model, "wte", "h.0.w")
    os.close(control)


@pytest.mark.parametrize("size", [1, 7, 100, 512, 4096, 8192, 65536])
def test_a_script_is_the_same_however_it_is_cut(model, folder, size):
    """Cuts that are no multiple of 512 come at line ends only, as writers make them."""
    script = "".join(
        f"load {DEVICE} {name} # {'.' * (8 * n)}\n" for n, name in enumerate(LAYERS)
    ).encode()
    control = os.open(control_of(model), os.O_WRONLY)
    pieces = (
        [script[at : at + size] for at in range(0, len(script), size)]
        if size % 512 == 0
        else script.splitlines(keepends=True)
    )
    for piece in pieces:
        os.write(control, piece)
    os.close(control)
    assert holds(model, *LAYERS)


def test_a_script_of_a_million_bytes_and_a_line_of_a_million_bytes(model, folder):
    line = f"load {DEVICE} wte h.* # " + "x" * 500 + "\n"
    (folder / "lines").write_text(line * (1_000_000 // len(line)) + f"unload {DEVICE} h.*\n")
    output_of("cp", folder / "lines", control_of(model))
    assert holds(model, "wte")
    (folder / "line").write_text(f"load {DEVICE} " + "h.0.w h.1.w " * 83_333 + "'h.2.w'\n")
    output_of("bash", "-c", f"cat {folder / 'line'} > {control_of(model)}")
    assert holds(model, "wte", "h.0.w", "h.1.w", "h.2.w")
    command(model, f"unload {DEVICE} *")
    with open(control_of(model), "wb", buffering=0) as file:
        data = (folder / "line").read_bytes()
        while data:
            data = data[file.write(data) :]
    assert holds(model, "h.0.w", "h.1.w", "h.2.w")


@pytest.mark.parametrize("shift", [0, 1, 100, 511, 4095])
def test_a_write_that_the_kernel_cuts_is_whole(model, shift):
    """It hands over a number of pages, so that the cut depends on where the text lies in memory."""
    lines = f"load {DEVICE} h.1.w wte # {'.' * 190}\n".encode() * 6000
    memory = mmap.mmap(-1, len(lines) + 4096)
    memory[shift : shift + len(lines)] = lines
    with memoryview(memory)[shift : shift + len(lines)] as text:
        with open(control_of(model), "wb", buffering=0) as control:
            done = 0
            while done < len(text):
                done += control.write(text[done:])
    assert holds(model, "h.1.w", "wte")


def test_a_buffered_file_hands_over_a_script_of_megabytes(model):
    with open(control_of(model), "w") as file:
        file.write(f"load {DEVICE} h.1.w wte # {'.' * 190}\n" * 12_000)
    assert holds(model, "h.1.w", "wte")


def test_comments_blank_lines_tabs_and_crlf_are_taken(model):
    said = command(model, "", "   ", f"# load {DEVICE} *", "\t# x", f"load\t{DEVICE}  wte  # h.0.w",
                   "\r", f"load {DEVICE} h.0.w\r", "# end\r")  # fmt: skip
    assert holds(model, "wte", "h.0.w")
    assert len(said.splitlines()) == 2


def test_a_nul_is_einval_and_what_came_before_it_stays(model):
    lines = [f"load {DEVICE} {name}" for name in ("wte", "h.0.w\0", "h.1.w")]
    code, sentence = refusal(model, *lines)
    assert code == "EINVAL" and "NUL" in sentence
    assert holds(model, "wte")


def test_the_report_follows_on_the_same_descriptor(model):
    control = os.open(control_of(model), os.O_RDWR)
    assert os.read(control, 100) == b""
    os.write(control, f"load {DEVICE} wte\n".encode())
    first = os.read(control, 4096)
    told = rf"load {DEVICE}: 1 tensor\b.*\b16 bytes.* s\b.*GB/s.*\n"
    assert re.fullmatch(told, first.decode())
    assert os.read(control, 4096) == b""
    os.write(control, f"verify {DEVICE} wte\n".encode())
    both = b"".join(iter(lambda: os.read(control, 7), b""))
    assert both.startswith(first) and both.count(b"\n") == 2
    assert f"verify {DEVICE}".encode() in both
    os.lseek(control, 0, os.SEEK_SET)
    assert os.read(control, 4096) == both
    assert os.pread(control, 4096, 0) == both
    os.close(control)
    assert report(model).encode() == both


def test_the_report_follows_on_an_appending_descriptor_too(model):
    output_of("bash", "-c", f"echo load {DEVICE} h.0.w > {control_of(model)}")
    control = os.open(control_of(model), os.O_RDWR | os.O_APPEND)
    os.write(control, f"load {DEVICE} wte\n".encode())
    assert os.read(control, 4096).startswith(f"load {DEVICE}: 1 tensor".encode())
    os.close(control)


def test_the_report_holds_the_sentence_of_a_failure(model):
    control = os.open(control_of(model), os.O_RDWR)
    lines = [f"load {DEVICE} {name}\n" for name in ("wte", "nothing", "h.0.w")]
    with pytest.raises(FileNotFoundError):
        os.write(control, "".join(lines).encode())
    done, failed = os.read(control, 4096).decode().splitlines()
    os.close(control)
    assert done.startswith(f"load {DEVICE}:") and "nothing" in failed
    assert report(model).splitlines() == [done, failed]


def test_a_fresh_open_tells_the_latest_and_stays_as_it_was(model):
    command(model, f"load {DEVICE} wte")
    with open(control_of(model)) as before:
        command(model, f"unload {DEVICE} wte")
        assert before.read().startswith(f"load {DEVICE}:")
        assert report(model).startswith(f"unload {DEVICE}:")
    output_of("bash", "-c", f": > {control_of(model)}")
    # A descriptor that wrote nothing tells nothing.
    assert report(model).startswith(f"unload {DEVICE}:")


def test_the_size_of_the_report_is_true(model, folder):
    command(model, *[f"load {DEVICE} *"] * 300)
    whole = report(model)
    assert len(whole.splitlines()) == 300
    assert int(output_of("wc", "-c", control_of(model)).split()[0]) == len(whole)
    output_of("cp", control_of(model), folder / "copy")
    assert (folder / "copy").read_text() == whole
    with open(control_of(model)) as file:
        assert os.fstat(file.fileno()).st_size == len(whole)


def test_each_user_reads_their_own_report(folder, mount, other_user):
    checkpoint = write(folder / "m.safetensors", [tensor(name) for name in NAMES])
    mounted = mount(checkpoint.path, options=f"allow_other,gid={OTHER_GID}")
    command(mounted, f"load {DEVICE} wte")
    write_script = f'echo "load {DEVICE} nothing" > "$1"; cat "$1"'
    theirs = other_user("sh", "-c", write_script, "sh", control_of(mounted))
    assert "nothing" in theirs.stdout and "wte" not in theirs.stdout
    assert report(mounted).startswith(f"load {DEVICE}: 1 tensor")
    again = other_user("cat", control_of(mounted)).stdout
    assert again == theirs.stdout


def test_another_user_can_not_open_it(folder, mount, other_user):
    checkpoint = write(folder / "m.safetensors", [tensor("wte")])
    mounted = mount(checkpoint.path, options="allow_other")
    for words in (
        ["cat"],
        ["sh", "-c", f'echo load {DEVICE} wte > "$0"'],
        ["tee", "-a"],
        ["truncate", "-s0"],
    ):
        refused = other_user(*words, control_of(mounted))
        assert refused.returncode != 0 and "Permission denied" in refused.stderr, words
    assert holds(mounted)


def test_the_first_failure_ends_a_descriptor_and_no_other(model):
    control = os.open(control_of(model), os.O_WRONLY)
    other = os.open(control_of(model), os.O_WRONLY)
    lines = [f"load {DEVICE} {name}\n" for name in ("wte", "nothing", "h.0.w")]
    with pytest.raises(FileNotFoundError):
        os.write(control, "".join([*lines, "nonsense\n"]).encode())
    for text in (
        f"load {DEVICE} h.1.w\n".encode(),
        b"nonsense\n",
        b"load cuda:99 *\n",
        b"\n",
        b"# x\n",
        b"help\n",
    ):
        with pytest.raises(FileNotFoundError):
            os.write(control, text)
    os.write(other, f"load {DEVICE} h.2.w\n".encode())
    os.close(other)
    os.close(control)
    assert holds(model, "wte", "h.2.w")


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_a_shell_that_goes_on_after_a_failure_changes_nothing_more(model, shell):
    script = f"{{ echo load {DEVICE} wte; echo nonsense; echo load {DEVICE} h.0.w; }} > $1"
    result = run(shell, "-c", script, shell, control_of(model))
    assert result.returncode != 0 and len(result.stderr.splitlines()) == 2
    assert holds(model, "wte")
    assert len(report(model).splitlines()) == 2


WRONG = [
    ("EINVAL", "nonsense", "nonsense"), ("EINVAL", "load", "load"),
    ("EINVAL", f"load {DEVICE}", "load"), ("EINVAL", f"unload {DEVICE}", "unload"),
    ("EINVAL", f"unload {DEVICE},cuda:99 *", "unload"),
    ("EINVAL", "verify", "verify"), ("EINVAL", f"load {DEVICE} 'wte", "'"),
    ("EINVAL", f'load {DEVICE} "wte', '"'), ("EINVAL", f"load {DEVICE} $'wte", "'"),
    ("EINVAL", f"load {DEVICE} wte\\", "backslash"), ("EINVAL", "LOAD cpu wte", "LOAD"),
    ("EINVAL", "load '' wte", "load"), ("EINVAL", f"load {DEVICE}, wte", f"{DEVICE},"),
    ("EINVAL", "help me", "help"), ("EINVAL", f"'load {DEVICE} wte'", f"load {DEVICE} wte"),
    ("ENOENT", f"load {DEVICE} nothing", "nothing"),
    ("ENOENT", f"load {DEVICE} wte nothing.*", "nothing.*"),
    ("ENOENT", f"unload {DEVICE} wte", "wte"), ("ENOENT", f"unload {DEVICE} *", "*"),
    ("ENOENT", f"verify {DEVICE} wte", "wte"), ("ENODEV", "load cuda:99 wte", "cuda:99"),
    ("ENODEV", "load tpu wte", "tpu"), ("ENODEV", "load CPU wte", "CPU"),
    ("ENODEV", f"load {DEVICE},cuda:99 wte", "cuda:99"), ("ENODEV", "load cpu:0 wte", "cpu:0"),
    ("ENODEV", "unload GPU-00000000-0000-0000-0000-000000000000 *", "GPU-0"),
    ("ENODEV", "verify MIG-0", "MIG-0"),
]  # fmt: skip


@pytest.mark.parametrize("code, line, names", WRONG, ids=[line for _, line, _ in WRONG])
def test_a_wrong_line_has_its_errno_and_a_sentence(model, code, line, names):
    found, sentence = refusal(model, line)
    assert found == code
    assert names in sentence and len(sentence) > len(names) + 10, sentence
    assert report(model).rstrip("\n") == sentence
    assert holds(model)


def test_a_sentence_stays_one_printable_line(model):
    code, sentence = refusal(model, rf"load {DEVICE} $'a\nb\e[31m'")
    assert code == "ENOENT" and "\x1b" not in sentence and "a" in sentence
    assert len(report(model).splitlines()) == 1


def test_help_names_the_commands(model):
    said = command(model, "help")
    for word in ("load", "unload", "verify", "help", "DEVICE", "PATTERN"):
        assert word in said


def test_a_command_is_repeated_without_harm(model):
    command(model, f"load {DEVICE} wte h.0.w", f"load {DEVICE} h.0.w wte h.1.w")
    assert holds(model, "wte", "h.0.w", "h.1.w")
    command(model, f"unload {DEVICE} *")
    assert holds(model)


def test_many_short_writes_on_one_descriptor_are_all_run(model):
    control = os.open(control_of(model), os.O_WRONLY)
    for n in range(2000):
        os.write(control, f"load {DEVICE} h.%d.w\n".encode() % (n % len(LAYERS)))
    os.close(control)
    assert holds(model, *LAYERS)
    assert len(report(model).splitlines()) == 2000


def test_a_copied_descriptor_is_the_same_script(model):
    """As a shell's subcommands inherit theirs."""
    script = '{ echo "$1" wte; env echo "$1" h.0.w; (echo "$1" h.1.w); } > $0'
    output_of("bash", "-c", script, control_of(model), f"load {DEVICE}")
    assert holds(model, "wte", "h.0.w", "h.1.w")
    assert len(report(model).splitlines()) == 3


def test_it_can_not_be_removed_renamed_or_made_accessible(model, folder):
    for action in (
        lambda: os.unlink(control_of(model)),
        lambda: os.rename(control_of(model), model / "other"),
        lambda: os.link(control_of(model), model / "other"),
        lambda: os.chmod(control_of(model), 0o666),
        lambda: os.mkdir(control_of(model)),
    ):
        with pytest.raises(OSError):
            action()
    os.truncate(control_of(model), 0)
    assert stat.S_IMODE(os.stat(control_of(model)).st_mode) == 0o600


def test_a_child_that_ends_does_not_run_the_line_that_its_parent_is_writing(model):
    descriptor = os.open(control_of(model), os.O_WRONLY)
    os.write(descriptor, f"\nload {DEVICE} h.1.".rjust(512, "#").encode())
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.write(descriptor, b"w\n")
    os.close(descriptor)
    assert holds(model, "h.1.w")
    assert report(model).count("\n") == 1
