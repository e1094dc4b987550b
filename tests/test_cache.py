"""The cache: what was put is what is got, or nothing; whatever happens to its files."""

import errno
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import signal
import time
import warnings
from pathlib import Path

import pytest
import torch

import inclad.cache
import inclad.files
from inclad.cache import OLD, SOURCES, VERSIONS, Cache, content_key, device_name, file_digest, source_digest
from inclad.data import images
from inclad.data.task import DataError

KEY, OTHER = content_key(name="one"), content_key(name="two")
FORK = multiprocessing.get_context("fork")  # torch is loaded already: a process takes milliseconds


def tensors(seed: int = 0, rows: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(rows, 4, generator=generator), "b": torch.arange(rows)}


def same(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name]) for name in first
    )


def entry(cache: Cache, key: str = KEY) -> Path:
    return cache.folder / key[:2] / f"{key}.safetensors"


def again(cache: Cache) -> Cache:
    """As another process sees it."""
    return Cache(cache.folder, cache.limit / 2**30)


def small(folder: Path, limit: int) -> Cache:
    return Cache(folder, limit / 2**30)


def run(target, *given) -> list:
    """Processes started, one for each set of arguments."""
    processes = [FORK.Process(target=target, args=args) for args in given]
    for process in processes:
        process.start()
    return processes


# --- there and back


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
     torch.bool, torch.complex64],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,), (5, 1), (2, 3, 4)])
def test_what_is_put_is_got(cache, dtype, shape):
    given = {"x": (torch.rand(shape) * 5).to(dtype), "other": torch.ones(2)}
    cache.put(KEY, given)
    for each in (cache, again(cache)):
        found = each.get(KEY)
        assert same(found, given)
        assert found["x"].shape == shape
    assert cache.get(OTHER) is None


@pytest.mark.parametrize(
    "given", [torch.arange(5.0).view(1, 5).T, torch.ones(7)[::7], torch.rand(6, 4)[::2, 1:], torch.rand(3).expand(2, 3)]
)  # fmt: skip
def test_any_layout_is_kept_by_its_values(cache, given):
    cache.put(KEY, {"x": given})
    assert same(again(cache).get(KEY), {"x": given})


def test_trained_tensors_are_kept_without_their_gradient(cache):
    cache.put(KEY, {"x": torch.ones(3, requires_grad=True)})
    assert not cache.get(KEY)["x"].requires_grad


def test_a_new_entry_replaces_an_old_one(cache):
    cache.put(KEY, tensors(0))
    cache.get(KEY)
    cache.put(KEY, tensors(1, rows=7))
    assert same(cache.get(KEY), tensors(1, rows=7))
    assert cache.count() == 1


def test_what_was_got_is_the_readers_own(cache):
    cache.put(KEY, tensors())
    before = entry(cache).read_bytes()
    found = cache.get(KEY)
    found["a"].add_(1)
    assert entry(cache).read_bytes() == before
    assert same(cache.get(KEY), tensors())


def test_what_was_got_stays_when_the_entry_goes(cache):
    cache.put(KEY, tensors())
    found = cache.get(KEY)
    cache.clear()
    assert same(found, tensors())


def test_without_room_nothing_is_kept(tmp_path):
    cache = Cache(tmp_path / "none", 0)
    assert not cache
    cache.put(KEY, tensors())
    assert cache.get(KEY) is None
    assert not cache.folder.exists()
    assert Cache(tmp_path / "none", 1)


@pytest.mark.parametrize("limit", [-1, -0.1, float("nan"), float("inf")])
def test_a_limit_that_is_no_size_is_refused(tmp_path, limit):
    with pytest.raises(ValueError, match=f"^cache_gib: {limit} is no size") as error:
        Cache(tmp_path, limit)
    assert "\n" not in str(error.value)


# --- bounded


def test_beyond_the_limit_the_least_recently_used_go(tmp_path):
    size = 5000
    cache = small(tmp_path, 8 * size)
    keys = [content_key(number=number) for number in range(9)]
    room = {"x": torch.zeros(size - 200, dtype=torch.uint8)}
    for number, key in enumerate(keys[:7]):
        cache.put(key, room)
        os.utime(entry(cache, key), (number, number))
    assert cache.get(keys[0])  # used now: the first to come is no longer the first to go
    for key in keys[7:]:
        cache.put(key, room)
    # Nine are too many; room for some more is made at once, down to nine tenths.
    assert [cache.get(key) is not None for key in keys] == [True, False, False] + [True] * 6
    assert cache.size() <= 0.9 * cache.limit


def test_an_entry_as_large_as_the_limit_stays_and_a_larger_one_is_not_kept(tmp_path):
    cache = small(tmp_path, 10_000)
    cache.put(KEY, tensors())
    os.utime(entry(cache), (1, 1))
    cache.put(OTHER, {"x": torch.zeros(11_000, dtype=torch.uint8)})
    assert cache.get(OTHER) is None and cache.get(KEY)
    os.utime(entry(cache), (1, 1))
    cache.put(OTHER, {"x": torch.zeros(9_750, dtype=torch.uint8)})
    assert cache.get(OTHER) and cache.get(KEY) is None


def test_entries_of_all_processes_count(tmp_path):
    limit = 100_000
    writers = [small(tmp_path, limit) for _ in range(4)]
    largest = 0
    for number in range(200):
        writers[number % 4].put(content_key(number=number), {"x": torch.zeros(900, dtype=torch.uint8)})
        largest = max(largest, writers[0].size())
    assert 0.9 * limit <= largest <= (1 + 4 / 16) * limit


def test_what_was_there_before_counts(tmp_path):
    first = small(tmp_path, 10_000)
    for number in range(6):
        first.put(content_key(number=number), {"x": torch.zeros(1_000, dtype=torch.uint8)})
    second = small(tmp_path, 4_000)
    second.put(KEY, tensors())
    assert second.size() <= 4_000
    assert second.get(KEY)


def test_clear_removes_the_entries_and_nothing_else(cache, tmp_path):
    others = [
        cache.folder / "notes.safetensors",
        cache.folder / "my folder" / "x.safetensors",
        tmp_path / "outside",
    ]
    for path in others:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("mine")
    for number in range(5):
        cache.put(content_key(number=number), tensors())
    assert (cache.count(), cache.size() > 0) == (5, True)
    cache.clear()
    assert (cache.count(), cache.size()) == (0, 0)
    assert all(path.read_text() == "mine" for path in others)
    cache.put(KEY, tensors())
    assert same(cache.get(KEY), tensors())


# --- what is not whole is never returned


def refused(cache: Cache, reason: str = "") -> None:
    """The entry under KEY is not returned, with one warning; it is gone, and can be made again."""
    with pytest.warns(UserWarning) as told:
        assert again(cache).get(KEY) is None
    assert [str(w.message).startswith(str(entry(cache))) for w in told] == [True]
    assert "made again" in str(told[0].message) and reason in str(told[0].message)
    assert "\n" not in str(told[0].message)
    assert not os.path.lexists(entry(cache))
    fresh = again(cache)
    fresh.put(KEY, tensors())
    assert same(fresh.get(KEY), tensors())


def test_cut_anywhere(cache):
    cache.put(KEY, tensors())
    whole = entry(cache).read_bytes()
    for length in [*range(0, len(whole), 10), len(whole) - 1]:
        entry(cache).write_bytes(whole[:length])
        refused(cache)
    entry(cache).write_bytes(whole + b"more")
    refused(cache)


def test_any_bit_flipped(cache):
    """A flip either is seen or changed nothing that is returned, as in the blanks that pad the header."""
    cache.put(KEY, tensors())
    whole = entry(cache).read_bytes()
    payload = 8 + int.from_bytes(whole[:8], "little")
    for place in range(len(whole)):
        bit = 1 << random.Random(place).randrange(8)
        entry(cache).write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = cache.get(KEY)
        assert (found is None) == (len(told) == 1), place
        assert found is None or (place < payload and same(found, tensors())), place


def test_names_types_and_shapes_are_checked_too(cache):
    cache.put(KEY, {"abcd": torch.zeros(2, 8)})
    whole = entry(cache).read_bytes()
    for old, new in ((b"abcd", b"abce"), (b"F32", b"I32"), (b"[2,8]", b"[8,2]")):
        assert whole.count(old) == 1
        entry(cache).write_bytes(whole.replace(old, new))
        refused(cache, "its bytes changed")
        cache.put(KEY, {"abcd": torch.zeros(2, 8)})


def test_under_another_key(cache):
    cache.put(OTHER, tensors(1))
    entry(cache).parent.mkdir(exist_ok=True)
    shutil.copy(entry(cache, OTHER), entry(cache))
    refused(cache, "made from something else")
    assert same(cache.get(OTHER), tensors(1))


class Evil:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("what", ["empty", "random", "pickle", "torch", "folder", "link to a folder", "link"])
def test_something_else_in_its_place(cache, tmp_path, what):
    outside, marker, path = tmp_path / "outside", tmp_path / "marker", entry(cache)
    outside.mkdir()
    (outside / "mine").write_bytes(b"mine")
    path.parent.mkdir(parents=True)
    if what == "empty":
        path.write_bytes(b"")
    elif what == "random":
        path.write_bytes(random.Random(0).randbytes(1000))
    elif what == "pickle":
        path.write_bytes(pickle.dumps({"x": Evil(marker)}))
    elif what == "torch":
        torch.save({"x": Evil(marker)}, path)
    elif what == "folder":
        path.mkdir()
        (path / "full").write_text("x")
    else:
        path.symlink_to(outside / "mine" if what == "link" else outside)
    refused(cache)
    assert not marker.exists()
    assert [file.read_bytes() for file in outside.iterdir()] == [b"mine"]
    assert {file.name for file in tmp_path.iterdir()} == {"outside", "cache"}


# --- killed, crowded, full


def write_forever(folder: Path, seed: int) -> None:
    cache, random_number = Cache(folder, 1), random.Random(seed)
    while True:
        number = random_number.randrange(6)
        cache.put(content_key(number=number), tensors(number, rows=20_000))


def test_a_killed_writer_leaves_whole_entries_only(tmp_path):
    for seed in range(12):
        (process,) = run(write_forever, (tmp_path, seed))
        time.sleep(random.Random(seed).uniform(0.005, 0.08))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache = Cache(tmp_path, 1)
            found = {number: cache.get(content_key(number=number)) for number in range(6)}
        assert all(each is None or same(each, tensors(n, rows=20_000)) for n, each in found.items())
    assert any(found.values())


def die_before_renaming(folder: Path) -> None:
    inclad.files.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    Cache(folder, 1).put(KEY, tensors())


def test_what_a_killed_writer_left_is_never_read_and_swept_when_old(cache):
    (process,) = run(die_before_renaming, (cache.folder,))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (left,) = cache.folder.glob("*/*")
    assert left.suffix == ".tmp" and left.stat().st_size > 0
    assert (cache.count(), cache.size(), again(cache).get(KEY)) == (0, 0, None)
    cache.clear()
    assert left.exists()  # its writer may still be there
    for age, there in ((OLD - 60, True), (OLD + 60, False)):
        os.utime(left, (time.time() - age,) * 2)
        again(cache)
        assert left.exists() == there


def read_and_write(folder: Path, limit: int, seed: int, barrier) -> None:
    warnings.simplefilter("error")  # nothing of the others is ever half there
    cache, order = small(folder, limit), random.Random(seed)
    barrier.wait()
    for _ in range(80):
        number = order.randrange(20)
        key = content_key(number=number)
        found = cache.get(key)
        if found is None:
            cache.put(key, tensors(number, rows=50))
        else:
            assert same(found, tensors(number, rows=50))


# An entry has about 1,400 bytes: all twenty fit, or never more than three.
@pytest.mark.parametrize("limit", [1_000_000, 5_000])
def test_eight_processes_at_once(tmp_path, limit):
    barrier = FORK.Barrier(8)
    processes = run(read_and_write, *((tmp_path, limit, seed, barrier) for seed in range(8)))
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8
    cache = small(tmp_path, limit)
    assert cache.count() == 20 if limit > 100_000 else 0 < cache.count() <= 12
    assert not list(tmp_path.glob("*/*.tmp"))


def test_an_entry_dropped_while_it_is_opened_is_absent(cache, monkeypatch, recwarn):
    cache.put(KEY, tensors())
    map_file = torch.UntypedStorage.from_file

    def dropped(path, *given, **named):
        entry(cache).unlink()
        return map_file(path, *given, **named)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", dropped)
    assert cache.get(KEY) is None
    assert not entry(cache).exists()
    assert not recwarn.list


def test_a_folder_removed_while_writing_is_no_error(cache, monkeypatch):
    replace = os.replace

    def gone(source, target):
        shutil.rmtree(cache.folder)
        replace(source, target)

    monkeypatch.setattr(inclad.files.os, "replace", gone)
    cache.put(KEY, tensors())
    monkeypatch.undo()
    assert cache.get(KEY) is None
    cache.put(KEY, tensors())
    assert same(cache.get(KEY), tensors())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_told_in_one_line(cache, monkeypatch, code):
    cache.put(KEY, tensors())

    def full(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(inclad.files.os, "replace", full)
    with pytest.raises(OSError, match=r"no space left for the cache; free some.*--clear") as error:
        cache.put(OTHER, tensors(1))
    assert "\n" not in str(error.value) and str(cache.folder) in str(error.value)
    assert same(cache.get(KEY), tensors()) and cache.get(OTHER) is None
    assert len(list(cache.folder.glob("*/*"))) == 1
    monkeypatch.undo()
    cache.put(OTHER, tensors(1))
    assert same(cache.get(OTHER), tensors(1))


def test_another_failure_keeps_its_own_words(cache, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "where")

    monkeypatch.setattr(inclad.files.os, "replace", refuse)
    with pytest.raises(PermissionError, match="where"):
        cache.put(KEY, tensors())


def write_beyond(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    cache = Cache(folder, 1)
    cache.put(KEY, tensors())
    try:
        cache.put(OTHER, tensors(rows=1000))
    except OSError as error:
        assert "no space left for the cache" in str(error)
    else:
        raise AssertionError("nothing was refused")
    assert same(cache.get(KEY), tensors()) and cache.get(OTHER) is None


def test_a_write_that_stops_half_way_leaves_nothing(cache):
    (process,) = run(write_beyond, (cache.folder,))
    process.join()
    assert process.exitcode == 0
    assert [path.name for path in cache.folder.glob("*/*")] == [entry(cache).name]


# --- keys


def test_keys_tell_contents_apart():
    given = {"images": ["a", "b"], "size": 3, "kind": "x"}
    assert content_key(**given) == content_key(**dict(reversed(given.items())))
    others = [
        given | {"size": 4},
        given | {"size": "3"},
        given | {"images": ["b", "a"]},
        given | {"images": ["a,b"]},
        given | {"more": 0},
    ]
    assert len({content_key(**each) for each in (given, *others)}) == 6


def test_an_edited_module_or_another_version_gives_another_digest(monkeypatch):
    before = source_digest("maps", "data.images")
    assert before == source_digest("data.images", "maps") != source_digest("maps")
    monkeypatch.setitem(SOURCES, "neighbors", b"edited")
    assert source_digest("maps", "data.images") == before
    seen = {before}
    monkeypatch.setitem(SOURCES, "data.images", SOURCES["data.images"] + b"\n")
    seen.add(source_digest("maps", "data.images"))
    for name in ("torch", "timm", "numpy", "scipy", "pillow"):
        monkeypatch.setitem(VERSIONS, name, VERSIONS[name] + ".1")
        seen.add(source_digest("maps", "data.images"))
    assert len(seen) == 7


def test_sources_are_those_of_the_package():
    assert SOURCES["data.images"] == Path(images.__file__).read_bytes()
    assert SOURCES["cache"] == Path(inclad.cache.__file__).read_bytes()
    with pytest.raises(KeyError):
        source_digest("no_such_module")


def test_devices_that_round_differently_have_different_names(monkeypatch):
    assert device_name(torch.device("cpu")) == "cpu"
    assert device_name(torch.device("mps")) == "mps"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some Card")
    assert device_name(torch.device("cuda")) == "cuda Some Card"


def test_a_file_is_read_again_when_it_was_touched(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(b"one")
    os.utime(path, ns=(5, 5))
    first = file_digest(path)
    assert first == file_digest(path) != ""
    time.sleep(0.02)
    path.write_bytes(b"two")  # the same inode, size and, by hand, time
    os.utime(path, ns=(5, 5))
    second = file_digest(path)
    assert second != first
    (tmp_path / "other").write_bytes(b"one")
    os.utime(tmp_path / "other", ns=(5, 5))
    os.replace(tmp_path / "other", path)
    assert file_digest(path) == first


@pytest.mark.parametrize(("name", "told"), [("none", "no such file"), ("", "unreadable")])
def test_a_file_that_is_none_is_named(tmp_path, name, told):
    with pytest.raises(DataError, match=told) as error:
        file_digest(tmp_path / name)
    assert str(error.value).startswith(str(tmp_path / name))
    assert "\n" not in str(error.value)
