"""A folder is mirrored, and beside each checkpoint in it stands a folder of its tensors."""

import hashlib
import json
import os
import shutil
import stat

import pytest
import safetensors

from checkpoints import tensor, write, write_sharded
from daemon import LISTED_DOT_FILES, output_of

FIRST = [tensor("a", "F32", (2, 3)), tensor("b", "U8", (7,))]
SECOND = [tensor("c", "I16", (9,))]


@pytest.fixture
def model(folder):
    """A folder as people have them: configuration, tokenizer, checkpoints, more below."""
    root = folder / "model"
    (root / "sub/deep").mkdir(parents=True)
    (root / ".cache").mkdir()
    write(root / "model.safetensors", FIRST)
    write(root / "sub/adapter.safetensors", SECOND)
    for name, text in {
        "config.json": '{"hidden": 1}',
        "README.md": "# model\n",
        "empty.txt": "",
        ".gitattributes": "*.safetensors filter=lfs\n",
        ".cache/token": "secret",
        "sub/deep/vocab.txt": "a\nb\n",
        "tokenizer.bin": "x" * 3_000_001,
        "name with spaces, commas\n.txt": "y",
        "100%.txt": "percent",
        "a%2Fb": "looks escaped",
        os.fsdecode(b"caf\xe9.txt"): "a name in Latin-1",
    }.items():
        (root / name).write_text(text)
    return root


def warnings_of(mounted):
    return json.loads((mounted / ".status").read_bytes())["warnings"]


def assert_holds(place, tensors):
    assert {n for n in os.listdir(place) if not n.startswith(".")} == {t.name for t in tensors}
    for t in tensors:
        assert (place / t.name).read_bytes() == t.data


def files_below(root):
    return {
        os.path.relpath(os.path.join(folder, file), root)
        for folder, _, files in os.walk(root)
        for file in files
    }


def test_every_file_of_the_folder_is_a_readable_regular_file(model, mount):
    mounted = mount(model)
    for file in files_below(model):
        shown, real = os.stat(mounted / file, follow_symlinks=False), os.stat(model / file)
        assert stat.filemode(shown.st_mode) == "-r--r--r--", file
        assert shown.st_size == real.st_size, file
        assert shown.st_mtime_ns == real.st_mtime_ns, file
        assert (mounted / file).read_bytes() == (model / file).read_bytes(), file
    for below in ("sub", "sub/deep", ".cache"):
        assert stat.filemode(os.stat(mounted / below).st_mode) == "dr-xr-xr-x"


def test_nothing_else_appears_but_folders_of_tensors(model, mount):
    mounted = mount(model)
    extra = files_below(mounted) - files_below(model)
    ours = {".status"}
    for place, tensors in (("model.tensors", FIRST), ("sub/adapter.tensors", SECOND)):
        ours |= {f"{place}/{name}" for name in (*LISTED_DOT_FILES, *(t.name for t in tensors))}
    assert ours <= extra
    assert extra - ours <= set(LISTED_DOT_FILES)


def test_the_folder_of_tensors_is_a_whole_mount(model, mount):
    place = mount(model) / "model.tensors"
    assert_holds(place, FIRST)
    assert sorted(n for n in os.listdir(place) if n.startswith(".")) == sorted(LISTED_DOT_FILES)
    assert (place / ".all.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert sorted(os.listdir(place / ".npy")) == ["a.npy", "b.npy"]
    assert [e["path"] for e in json.loads((place / ".index.json").read_bytes())["tensors"]] == ["a", "b"]
    assert os.getxattr(place / "a", "user.safetensors.dtype") == b"F32"


def test_programs_open_the_mirrored_checkpoint(model, mount):
    mounted = mount(model)
    with safetensors.safe_open(mounted / "model.safetensors", "numpy") as opened:
        for t in FIRST:
            assert opened.get_tensor(t.name).tobytes() == t.data
    assert json.loads((mounted / "config.json").read_bytes()) == {"hidden": 1}
    digest = output_of("sha256sum", mounted / "tokenizer.bin").split()[0]
    assert digest == hashlib.sha256((model / "tokenizer.bin").read_bytes()).hexdigest()


def test_tools_copy_the_mirror(model, mount, folder):
    mounted = mount(model)
    output_of("cp", "-r", mounted.path, folder / "copy")
    output_of("diff", "-r", "-q", "--exclude=.*", "--exclude=*.tensors", model, folder / "copy")
    assert output_of("du", "-s", "--apparent-size", "-B1", mounted)


def test_an_index_and_its_shards_are_one_folder_of_tensors(folder, mount):
    root = folder / "model"
    root.mkdir()
    write_sharded(root, [FIRST, SECOND])
    write(root / "other.safetensors", SECOND)
    mounted = mount(root)
    folders = {name for name in os.listdir(mounted) if (mounted / name).is_dir()}
    assert folders == {"model.tensors", "other.tensors"}
    assert_holds(mounted / "model.tensors", FIRST + SECOND)
    for name in os.listdir(root):
        assert (mounted / name).read_bytes() == (root / name).read_bytes()


def test_two_checkpoints_of_one_stem_keep_their_whole_names(folder, mount):
    root = folder / "model"
    root.mkdir()
    write(root / "model.safetensors", [tensor("whole")])
    write_sharded(root, [FIRST, SECOND])
    mounted = mount(root)
    folders = {name for name in os.listdir(mounted) if (mounted / name).is_dir()}
    assert folders == {"model.safetensors.tensors", "model.safetensors.index.json.tensors"}
    assert_holds(mounted / "model.safetensors.tensors", [tensor("whole")])
    assert_holds(mounted / "model.safetensors.index.json.tensors", FIRST + SECOND)


def test_an_invalid_checkpoint_does_not_hide_the_others(model, mount):
    (model / "broken.safetensors").write_bytes(b"<!DOCTYPE html><html></html>")
    (model / "sub/short.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-3])
    write_sharded(model / "sub/deep", [SECOND])[1][0].path.unlink()
    mounted = mount(model)
    assert_holds(mounted / "model.tensors", FIRST)
    assert_holds(mounted / "sub/adapter.tensors", SECOND)
    for absent in ("broken.tensors", "sub/short.tensors", "sub/deep/model.tensors"):
        assert not (mounted / absent).exists()
    assert (mounted / "broken.safetensors").read_bytes().startswith(b"<!DOCTYPE")
    warnings = warnings_of(mounted)
    assert len(warnings) == 3
    for name, word in (
        ("broken.safetensors", "HTML"),
        ("sub/short.safetensors", "3"),
        ("sub/deep/model.safetensors.index.json", "model-00001-of-00001.safetensors"),
    ):
        assert any(name in warning and word in warning for warning in warnings), warnings


def test_links_to_files_are_followed_and_links_to_folders_are_not(model, mount, folder):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/file").write_text("linked")
    write(folder / "elsewhere/blob", SECOND)
    (model / "linked.txt").symlink_to("../elsewhere/file")
    (model / "linked.safetensors").symlink_to(folder / "elsewhere/blob")
    (model / "folder").symlink_to("../elsewhere")
    (model / "up").symlink_to("..")
    (model / "dangling").symlink_to("nowhere")
    (model / "loop").symlink_to("loop")
    mounted = mount(model)
    assert stat.S_ISREG(os.lstat(mounted / "linked.txt").st_mode)
    assert (mounted / "linked.txt").read_text() == "linked"
    assert_holds(mounted / "linked.tensors", SECOND)
    for name in ("folder", "up", "dangling", "loop"):
        assert name not in os.listdir(mounted)
        assert not os.path.lexists(mounted / name)


def test_what_is_neither_file_nor_folder_is_left_out(model, mount):
    os.mkfifo(model / "fifo")
    os.mkfifo(model / "pipe.safetensors")
    mounted = mount(model)
    assert not {"fifo", "pipe.safetensors", "pipe.tensors"} & set(os.listdir(mounted))


def test_our_dot_names_win_over_the_folders_own(model, mount):
    (model / ".status").write_text("not ours")
    mounted = mount(model)
    assert os.path.samefile(json.loads((mounted / ".status").read_bytes())["source"], model)
    assert os.listdir(mounted).count(".status") == 1


def test_a_folder_that_bears_the_name_of_ours_does_not_break_the_mount(model, mount):
    (model / "model.tensors").mkdir()
    (model / "model.tensors/theirs").write_text("theirs")
    mounted = mount(model)
    assert os.listdir(mounted).count("model.tensors") == 1
    assert_holds(mounted / "sub/adapter.tensors", SECOND)


def test_the_listing_is_that_of_the_moment_of_mounting(model, mount):
    mounted = mount(model)
    before = sorted(os.listdir(mounted))
    (model / "later.txt").write_text("later")
    write(model / "later.safetensors", SECOND)
    shutil.rmtree(model / ".cache")
    assert sorted(os.listdir(mounted)) == before


def test_a_folder_without_checkpoints_and_an_empty_one_mount(folder, mount):
    (folder / "empty").mkdir()
    assert [n for n in os.listdir(mount(folder / "empty")) if not n.startswith(".")] == []
    (folder / "text").mkdir()
    (folder / "text/a.txt").write_text("a")
    assert (mount(folder / "text") / "a.txt").read_text() == "a"


def test_a_trailing_slash_and_dot_dot_in_the_source_change_nothing(model, mount):
    for spelling in (f"{model}/", f"{model}/sub/..", f"{model}/./"):
        assert_holds(mount(spelling) / "model.tensors", FIRST)


def test_a_path_that_is_not_utf8_is_served_and_the_json_stays_json(folder, mount):
    root = folder / os.fsdecode(b"mod\xe8le")
    root.mkdir()
    write(root / os.fsdecode(b"\xff.safetensors"), FIRST)
    for mounted, place in (
        (mounted := mount(root), mounted / os.fsdecode(b"\xff.tensors")),
        (mounted := mount(root / os.fsdecode(b"\xff.safetensors")), mounted.path),
    ):
        assert_holds(place, FIRST)
        for name in (".status", ".index.json"):
            json.loads((place / name).read_bytes().decode())
        assert os.getxattr(place / "a", "user.safetensors.source").endswith(b"\xff.safetensors")


def test_many_checkpoints_in_one_folder(folder, mount):
    root = folder / "model"
    root.mkdir()
    for number in range(100):
        write(root / f"{number}.safetensors", [tensor("t", seed=number)])
    mounted = mount(root)
    for number in range(100):
        assert_holds(mounted / f"{number}.tensors", [tensor("t", seed=number)])
    assert warnings_of(mounted) == []


def test_a_folder_named_relatively_can_be_read_in_the_background(folder, mount):
    (folder / "model").mkdir()
    write(folder / "model/m.safetensors", [tensor("a")])
    (folder / "model/config.json").write_text("{}")
    mounted = mount("model", cwd=folder)
    assert (mounted / "config.json").read_text() == "{}"
    assert (mounted / "m.tensors/a").read_bytes() == tensor("a").data


def test_the_status_of_the_root_shows_what_is_loaded_of_all_checkpoints(folder, mount):
    for name in "mn":
        write(folder / f"{name}.safetensors", [tensor("a")])
    mounted = mount(folder)
    for name in "mn":
        (mounted / f"{name}.tensors/.control").write_text("load cpu a\n")
    (cpu,) = json.loads((mounted / ".status").read_bytes())["devices"]
    assert (cpu["name"], cpu["loaded_tensors"]) == ("cpu", 2)
    (cpu,) = json.loads((mounted / "m.tensors/.status").read_bytes())["devices"]
    assert cpu["loaded_tensors"] == 1
