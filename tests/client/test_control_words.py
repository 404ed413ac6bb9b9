"""The words of commands mean to the daemon, as to bash, what they are made from."""

import subprocess

import pytest

from safetensorfs.control import WRITE_NBYTES, glob, literal, pieces_of

STRANGE = [
    "", "a", "h.0.ln_1.weight", "two words", "it's", '"', "\\", "\\n", "a\nb", "\t", "\r\n", "\x01",
    "\x7f", "*", "?", "[a-z]", "[!x]", "$HOME", "`id`", "$(id)", "a;b", "a&b", "a|b", "<", ">", "(",
    ")", "{a,b}", "~", "#", "# x", "!", "^", "-", "--help", "=", "a=b", "%2F", "名前", "é\n名",
    "\u2028", "'\n'", "\x1f1", "\x0aff", "end\\", "end'",
]  # fmt: skip


def bash(script, *arguments):
    return subprocess.run(
        ["bash", "-c", script.encode(), "bash", *(a.encode() for a in arguments)],
        stdout=subprocess.PIPE,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    ).stdout


@pytest.mark.parametrize("name", STRANGE, ids=ascii)
def test_a_literal_word_is_the_name(name):
    word = literal(name)
    assert "\n" not in word
    assert bash(f"set -f; printf %s {word}") == name.encode()


@pytest.mark.parametrize("name", STRANGE, ids=ascii)
def test_a_literal_word_matches_the_name_and_no_pattern(name):
    assert bash(f"case $1 in {literal(name)}) echo yes;; esac", name) == b"yes\n"
    if any(character in name for character in "*?["):
        assert bash(f"case $1 in {literal(name)}) echo yes;; esac", "a") == b""


@pytest.mark.parametrize("pattern", [s for s in STRANGE if "[" not in s], ids=ascii)
def test_only_stars_question_marks_and_brackets_are_special_in_a_pattern(pattern):
    word = glob(pattern)
    assert "\n" not in word
    for name in pattern, pattern.replace("*", "any.thing").replace("?", "'"):
        assert bash(f"case $1 in {word}) echo yes;; esac", name) == b"yes\n"
    assert bash(f"case $1 in {word}) echo yes;; esac", f"{pattern}+") == (
        b"yes\n" if pattern.endswith("*") else b""
    )


@pytest.mark.parametrize(
    "pattern, yes, no",
    [
        ("h.[0-9].*", "h.3.w", "h.x.w"),
        ("[!a-c]x", "dx", "ax"),
        ("[^a-c]x", "dx", "ax"),
        ("a[*]b", "a*b", "axb"),
        ("a b*", "a bc", "ab"),
        ("x[ab]\n*", "xa\nz", "xaz"),
    ],
)
def test_brackets_keep_their_meaning(pattern, yes, no):
    script = f"case $1 in {glob(pattern)}) echo yes;; esac"
    assert (bash(script, yes), bash(script, no)) == (b"yes\n", b"")


@pytest.mark.parametrize("word", [literal, glob])
def test_nul_is_refused_with_the_way_around_it(word):
    with pytest.raises(ValueError, match="%00"):
        word("a\0b")


def test_a_short_script_is_one_piece():
    assert list(pieces_of(b"load cpu x\n")) == [b"load cpu x\n"]
    assert list(pieces_of(b"x" * (WRITE_NBYTES - 1) + b"\n")) == [b"x" * (WRITE_NBYTES - 1) + b"\n"]


def test_long_scripts_are_cut_at_line_ends():
    lines = [b"load cpu %d%s\n" % (i, b"x" * (i % 1000)) for i in range(1000)]
    pieces = list(pieces_of(b"".join(lines)))
    assert len(pieces) > 4 and b"".join(pieces) == b"".join(lines)
    assert all(len(piece) <= WRITE_NBYTES and piece.endswith(b"\n") for piece in pieces)


def test_a_line_longer_than_a_write_is_cut_where_the_daemon_waits_for_the_rest():
    script = b"help\n" + b"x" * (2 * WRITE_NBYTES + 5) + b"\nhelp\n"
    pieces = list(pieces_of(script))
    assert b"".join(pieces) == script
    assert pieces[0] == b"help\n"
    for piece in pieces[:-1]:
        assert piece.endswith(b"\n") or len(piece) % 512 == 0
