"""How commands name tensors: quoting, globs, file names, and what a shell expands."""

import pytest

from checkpoints import tensor, write
from commands import DEVICE, command, control_of, holds, refusal
from daemon import output_of

LAYERS = [f"h.{n}.w" for n in range(40)]
NAMES = [*LAYERS, "wte", "a/b", ".dot", "100%", "H.0.W"]
STRANGE = [
    "new\nline", "car\rriage", "tab\there", "a space", " leading", "trailing ", "it's", 'say "so"',
    "back\\slash", "end\\", "star*", "quest?", "[a-z]", "[", "{a,b}", "$HOME", "$(id)", "`id`",
    "#hash", "a#b", "~", "!", "-n", ";&|<>()", "=", "a/b/../c", ".", "..", "/", "%2F", "ünï☃😀",
    "\x01\x1b\x7f", "$'x'", "", "load",
]  # fmt: skip


@pytest.fixture
def model(folder, mount):
    return mount(write(folder / "m.safetensors", [tensor(name) for name in NAMES]).path)


@pytest.fixture
def strange(folder, mount):
    return mount(write(folder / "s.safetensors", [tensor(name) for name in STRANGE]).path)


@pytest.mark.parametrize("name", STRANGE, ids=ascii)
def test_printf_q_names_a_tensor_whatever_its_name(strange, name):
    script = f'printf "load {DEVICE} %q\\n" "$1" > "$2"'
    output_of("bash", "-c", script, "bash", name, control_of(strange))
    assert holds(strange, name)
    output_of("bash", "-c", script.replace("load", "unload"), "bash", name, control_of(strange))
    assert holds(strange)


def test_a_file_name_stands_for_its_tensor(model):
    command(model, f"load {DEVICE} a%2Fb %2Edot 100%25")
    assert holds(model, "a/b", ".dot", "100%")
    command(model, f"unload {DEVICE} a/b .dot '100%'")
    assert holds(model)


@pytest.mark.parametrize("word, name", [
    (r"$'new\nline'", "new\nline"), (r"$'new\x0aline'", "new\nline"),
    (r"$'new\012line'", "new\nline"), (r"new$'\n'line", "new\nline"), (r"$'it\'s'", "it's"),
    (r"it\'s", "it's"), ('"it\'s"', "it's"), (r"'it'\''s'", "it's"), (r'"say \"so\""', 'say "so"'),
    (r"back\\slash", "back\\slash"), (r'"back\slash"', "back\\slash"),
    (r"$'\u00fcn\u00ef\u2603\U0001F600'", "ünï☃😀"), (r"$'\001\e\177'", "\x01\x1b\x7f"), ("''", ""),
    ('""', ""), (r"star\*", "star*"), ("'star*'", "star*"), ("star*", "star*"), ("[a-z]", "[a-z]"),
    ("quest?", "quest?"), (r"\#hash", "#hash"), ("a#b", "a#b"), ("$HOME", "$HOME"),
    ('"$HOME"', "$HOME"), ("~", "~"), ("'a space'", "a space"), (r"a\ space", "a space"),
    ("'trailing '", "trailing "), ("{a,b}", "{a,b}"), ("load", "load"), ("'load'", "load"),
    (r"$'car\rriage'", "car\rriage"), ("%252F", "%2F"), ("%2F", "%2F"), ("..", ".."),
    ("%2E.", ".."), ("/", "/"),
])  # fmt: skip
def test_words_are_quoted_as_in_bash(strange, word, name):
    command(strange, f"load {DEVICE} {word}")
    assert holds(strange, name)


@pytest.mark.parametrize("pattern, matches", [
    ("h.*", LAYERS), ("h.[0-9].w", LAYERS[:10]), ("h.?.w", LAYERS[:10]),
    ("h.[!0-3]*", LAYERS[4:10]), ("h.3?.*", LAYERS[30:40]), ("*", NAMES), ("*.w", LAYERS),
    ("h*w", LAYERS), ("'h.'*", LAYERS), ("h.[12][0-9].w", LAYERS[10:30]),
    ("h.1.w h.2.w h.1.w", LAYERS[1:3]), ("*b", ["a/b"]), ("a?b", ["a/b"]), ("a%2F*", ["a/b"]),
    ("?dot", [".dot"]), ("*e wte", ["wte"]),
])  # fmt: skip
def test_globs_choose_among_names_and_file_names(model, pattern, matches):
    command(model, f"load {DEVICE} {pattern}")
    assert holds(model, *matches)


@pytest.mark.parametrize(
    "pattern", ["'h.*'", r"h.\*", '"h.*"', "h.'*'", "$'h.*'", "h.[*]", "H.*.w", "'*'"]
)
def test_a_quoted_glob_character_is_literal(model, pattern):
    code, sentence = refusal(model, f"load {DEVICE} {pattern}")
    assert code == "ENOENT"
    assert holds(model)


def test_the_shell_may_expand_the_globs(model, strange):
    output_of("bash", "-c", f"cd $0; echo load {DEVICE} h.* > .control", model)
    assert holds(model, *LAYERS)
    output_of("bash", "-c", f"cd $0; echo load {DEVICE} * > .control", model)
    assert holds(model, *NAMES)
    quoted = f'cd $0; printf "load {DEVICE}%s\\n" "$(printf " %q" *)" > .control'
    output_of("bash", "-c", quoted, strange)
    # The file %2F is that of /, but the word is another tensor's name.
    assert holds(strange, *(name for name in STRANGE if name != "/"))
