"""One file, shards behind an index, links and caches: each mounts as one directory of tensors."""

import json
import os

import pytest
import safetensors

from checkpoints import every_dtype, tensor, write, write_cache, write_sharded
from daemon import BINARY, output_of, safetensorfs

FIRST = [tensor("a.w", "F32", (2, 3)), tensor("a.b", "F16", (3,)), tensor("a.e", "I8", (0,))]
SECOND = [tensor("b.w", "I64", (5,)), tensor("b.s", "F64", ())]
THIRD = list(every_dtype(1))


@pytest.fixture
def sharded(folder):
    return write_sharded(folder, [FIRST, SECOND, THIRD])


def names_in(mounted):
    return {name for name in os.listdir(mounted) if not name.startswith(".")}


def assert_holds(mounted, tensors):
    assert names_in(mounted) == {t.name for t in tensors}
    for t in tensors:
        assert (mounted / t.name).read_bytes() == t.data, t.name


def warnings_of(mounted):
    return json.loads((mounted / ".status").read_bytes())["warnings"]


def assert_refused(status, source, *words):
    mountpoint = source.parent / "mountpoint"
    mountpoint.mkdir(exist_ok=True)
    for result in (safetensorfs(source, mountpoint), safetensorfs("--check", source)):
        assert result.returncode == status, result
        said = result.stdout + result.stderr
        assert all(word in said for word in words), said
        assert not os.path.ismount(mountpoint)


def test_a_file_needs_no_suffix(folder, mount):
    checkpoint = write(folder / "0123abcd", FIRST)
    assert_holds(mount(checkpoint.path), FIRST)


def test_a_file_is_found_through_links_of_links(folder, mount):
    checkpoint = write(folder / "blob", FIRST)
    (folder / "one").symlink_to("blob")
    (folder / "two").symlink_to(folder / "one")
    assert_holds(mount(folder / "two"), FIRST)
    assert checkpoint.path.exists()


def test_an_index_mounts_as_one_directory_over_its_shards(sharded, mount):
    index, shards = sharded
    mounted = mount(index)
    assert_holds(mounted, FIRST + SECOND + THIRD)
    assert warnings_of(mounted) == []
    description = json.loads((mounted / ".index.json").read_bytes())
    assert len(description["sources"]) == 3
    whole = {source["path"]: open(source["path"], "rb").read() for source in description["sources"]}
    data = {t.name: t.data for shard in shards for t in shard}
    for entry in description["tensors"]:
        begin, count = entry["offset"], entry["nbytes"]
        assert whole[entry["source"]][begin:][:count] == data[entry["name"]]
        path = mounted / entry["path"]
        assert os.getxattr(path, "user.safetensors.source") == entry["source"].encode()
        assert os.getxattr(path, "user.safetensors.offset") == str(begin).encode()
    assert isinstance(json.loads((mounted / ".metadata.json").read_bytes()), dict)


def test_all_safetensors_of_shards_is_one_valid_file(sharded, mount):
    index, _ = sharded
    mounted = mount(index)
    path = mounted / ".all.safetensors"
    assert os.path.getsize(path) == len(path.read_bytes())
    assert output_of(BINARY, "--check", path) == ""
    reference = dict(safetensors.deserialize(path.read_bytes()))
    assert {name: bytes(t["data"]) for name, t in reference.items()} == {
        t.name: t.data for t in FIRST + SECOND + THIRD
    }
    for t in FIRST + SECOND + THIRD:
        assert tuple(reference[t.name]["shape"]) == t.shape
        assert reference[t.name]["dtype"] == t.dtype


def test_safe_open_reads_all_safetensors_of_shards(folder, mount):
    index, _ = write_sharded(folder, [FIRST, SECOND])
    mounted = mount(index)
    with safetensors.safe_open(mounted / ".all.safetensors", "numpy") as opened:
        assert set(opened.keys()) == {t.name for t in FIRST + SECOND}
        for t in FIRST + SECOND:
            array = opened.get_tensor(t.name)
            assert array.shape == t.shape
            assert array.tobytes() == t.data


def test_all_safetensors_holds_only_what_the_index_lists(folder, mount):
    index, (shard, _) = write_sharded(folder, [FIRST, SECOND])
    listed = json.loads(index.read_text())
    del listed["weight_map"]["a.w"]
    index.write_text(json.dumps(listed))
    mounted = mount(index)
    with safetensors.safe_open(mounted / ".all.safetensors", "numpy") as opened:
        assert set(opened.keys()) == {"a.b", "a.e", "b.w", "b.s"}
        for t in FIRST[1:] + SECOND:
            assert opened.get_tensor(t.name).tobytes() == t.data


def test_tensors_that_the_index_omits_are_warned_of_and_not_shown(folder, mount):
    index, _ = write_sharded(folder, [FIRST, SECOND])
    listed = json.loads(index.read_text())
    del listed["weight_map"]["a.w"]
    index.write_text(json.dumps(listed))
    mounted = mount(index)
    assert_holds(mounted, FIRST[1:] + SECOND)
    with pytest.raises(FileNotFoundError):
        os.stat(mounted / "a.w")
    (warning,) = warnings_of(mounted)
    assert "a.w" in warning and "model-00001-of-00002.safetensors" in warning


def test_an_index_takes_the_tensor_from_the_shard_it_names(folder, mount):
    """Two shards may hold one name; the index decides."""
    index, _ = write_sharded(folder, [[tensor("t", seed=1)], [tensor("t", seed=2), tensor("u")]])
    assert_holds(mount(index), [tensor("t", seed=2), tensor("u")])


def test_shard_folders_below_the_index_are_within_it(folder, mount):
    (folder / "parts").mkdir()
    write(folder / "parts/one.safetensors", FIRST)
    index = folder / "x.safetensors.index.json"
    weight_map = {t.name: "parts/one.safetensors" for t in FIRST}
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert_holds(mount(index), FIRST)


def test_a_missing_shard_is_named(sharded):
    index, shards = sharded
    shards[1].path.unlink()
    assert_refused(32, index, shards[1].path.name)


def test_a_listed_tensor_that_its_shard_lacks_is_named(folder):
    index, _ = write_sharded(
        folder, [FIRST, SECOND], extra_map={"ghost": "model-00001-of-00002.safetensors"}
    )
    assert_refused(32, index, "ghost", "model-00001-of-00002.safetensors")


@pytest.mark.parametrize("way_out", ["../outside.safetensors", "sub/../../outside.safetensors", "/"])
def test_an_index_may_not_lead_out_of_its_folder(folder, way_out):
    (folder / "in/sub").mkdir(parents=True)
    outside = write(folder / "outside.safetensors", [tensor("t")])
    way = os.fspath(outside.path) if way_out == "/" else way_out
    index, _ = write_sharded(folder / "in", [FIRST], extra_map={"t": way})
    assert_refused(32, index, "outside.safetensors")


@pytest.mark.parametrize("way_out", ["", ".", "..", "sub"])
def test_a_shard_that_is_no_file_is_refused(folder, way_out):
    (folder / "sub").mkdir()
    index, _ = write_sharded(folder, [FIRST], extra_map={"t": way_out})
    assert_refused(32, index)


def test_an_invalid_shard_is_named_with_what_is_wrong(sharded):
    index, shards = sharded
    data = shards[2].path.read_bytes()
    shards[2].path.write_bytes(data[:-7])
    assert_refused(31, index, shards[2].path.name, "MetadataIncompleteBuffer", "7")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"weight_map":[]}', '{"weight_map":{"a":1}}', "null"]
)
def test_an_index_that_is_none_is_invalid(folder, text):
    index = folder / "model.safetensors.index.json"
    index.write_text(text)
    assert_refused(31, index, "model.safetensors.index.json")


def test_a_cache_snapshot_and_its_model_folder_show_the_same(folder, mount):
    write(folder / "one", FIRST)
    files = {"model.safetensors": (folder / "one").read_bytes(), "config.json": b'{"a":1}'}
    model, snapshot = write_cache(folder, files)
    for source in (snapshot, model):
        mounted = mount(source)
        assert_holds(mounted / "model.tensors", FIRST)
        for name, data in files.items():
            assert (mounted / name).read_bytes() == data
            assert not (mounted / name).is_symlink()
        assert not (mounted / "blobs").exists()
    assert_holds(mount(snapshot / "model.safetensors"), FIRST)
    assert_holds(mount((snapshot / "model.safetensors").resolve()), FIRST)


def test_a_sharded_snapshot_reads_through_its_links(folder, mount):
    """Each link leads out of the snapshot, which is how caches are; only names must stay within."""
    (folder / "plain").mkdir()
    write_sharded(folder / "plain", [FIRST, SECOND])
    files = {path.name: path.read_bytes() for path in (folder / "plain").iterdir()}
    model, snapshot = write_cache(folder, files)
    assert_holds(mount(snapshot / "model.safetensors.index.json"), FIRST + SECOND)
    assert_holds(mount(model) / "model.tensors", FIRST + SECOND)
