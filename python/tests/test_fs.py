"""The file system for fsspec."""

import os

import pytest

import hardpack

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def pool(work):
    fsspec.get_filesystem_class("hardpack").clear_instance_cache()
    made = hardpack.Pool.create("a.hpk")
    made.write_all([("top.txt", b"0123456789"), ("dir/in.txt", b"inside"), ("dir/deep/x", b"x")])
    made.snapshot("then")
    return made


@pytest.fixture(params=["path", "chained"])
def place(request, pool):
    """The file system, and what paths in the pool begin with."""
    if request.param == "path":
        return fsspec.filesystem("hardpack"), "a.hpk/"
    return fsspec.filesystem("hardpack", fo="a.hpk"), ""


def test_urls(pool):
    path = os.path.abspath("a.hpk")
    urls = [
        "hardpack://a.hpk/dir/in.txt",
        f"hardpack://{path}/dir/in.txt",
        f"hardpack://dir/in.txt::file://{path}",
        f"hardpack://dir/in.txt::{path}",
        "hardpack://a.hpk@then/dir/in.txt",
        f"hardpack://dir/in.txt::simplecache::file://{path}",
    ]
    for url in urls:
        with fsspec.open(url) as file:
            assert file.read() == b"inside", url
    with fsspec.open("hardpack://a.hpk/new/text", "wt") as file:
        file.write("written")
    assert pool.read_bytes("new/text") == b"written"
    with fsspec.open("hardpack://made.hpk/new", "wb") as file:
        file.write(b"in a new pool")
    assert hardpack.Pool("made.hpk").read_bytes("new") == b"in a new pool"
    files = fsspec.open_files("hardpack://a.hpk/dir/**")
    assert sorted(each.path for each in files) == ["a.hpk/dir/deep/x", "a.hpk/dir/in.txt"]


def test_listing(place):
    fs, top = place
    assert fs.ls(top, detail=False) == [f"{top}dir", f"{top}top.txt"]
    assert fs.ls(f"{top}top.txt")[0]["size"] == 10
    assert fs.info(f"{top}dir")["type"] == "directory"
    assert fs.find(top) == [f"{top}dir/deep/x", f"{top}dir/in.txt", f"{top}top.txt"]
    assert fs.glob(f"{top}**/*.txt") == [f"{top}dir/in.txt", f"{top}top.txt"]
    assert fs.du(f"{top}dir") == 7
    assert fs.isdir(f"{top}dir") and fs.isfile(f"{top}top.txt")
    assert fs.exists(f"{top}dir/in.txt") and not fs.exists(f"{top}none")
    assert fs.modified(f"{top}top.txt") >= fs.created(f"{top}top.txt").replace(year=2000)
    with pytest.raises(FileNotFoundError):
        fs.info(f"{top}none")
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{top}none")


def test_reading(place):
    fs, top = place
    path = f"{top}top.txt"
    assert fs.cat(path) == b"0123456789"
    assert fs.cat_file(path, 2, 5) == b"234"
    assert fs.cat_file(path, -3) == b"789"
    assert fs.cat_file(path, 0, -8) == b"01"
    assert fs.cat_ranges([path, path], [0, 5], [2, 7]) == [b"01", b"56"]
    assert fs.head(path, 3) == b"012" and fs.tail(path, 3) == b"789"
    fs.get(f"{top}dir", "copied", recursive=True)
    assert open("copied/in.txt", "rb").read() == b"inside"


def test_writing(place):
    fs, top = place
    fs.pipe(f"{top}new/a", b"a")
    fs.pipe({f"{top}new/b": b"b", f"{top}new/c": b"c"})
    assert fs.cat(f"{top}new/*") == {f"{top}new/{name}": name.encode() for name in "abc"}
    os.makedirs("local/sub")
    open("local/sub/file", "w").write("local")
    fs.put("local", f"{top}put", recursive=True)
    assert fs.cat(f"{top}put/sub/file") == b"local"
    fs.cp(f"{top}new/a", f"{top}new/copy")
    fs.mv(f"{top}new/copy", f"{top}new/moved")
    assert fs.ls(f"{top}new", detail=False) == [
        f"{top}new/{name}" for name in ["a", "b", "c", "moved"]
    ]
    fs.rm(f"{top}new/a")
    with pytest.raises(OSError):
        fs.rmdir(f"{top}new")
    fs.rm(f"{top}new", recursive=True)
    assert not fs.exists(f"{top}new")
    fs.makedirs(f"{top}made/deep")
    fs.makedirs(f"{top}made/deep", exist_ok=True)
    fs.rmdir(f"{top}made/deep")
    with pytest.raises(ValueError):
        fs.open(f"{top}top.txt", "ab")


def test_a_transaction_of_files(place):
    """Files of an fsspec transaction appear when it is complete, each in one piece."""
    fs, top = place
    with fs.transaction:
        with fs.open(f"{top}one", "wb") as file:
            file.write(b"1" * 100_000)
        fs.pipe(f"{top}two", b"2")
        with pytest.raises(ZeroDivisionError), fs.open(f"{top}three", "wb") as file:
            1 / 0
        assert not fs.exists(f"{top}one")
        assert fs.cat(f"{top}top.txt") == b"0123456789"
    assert fs.info(f"{top}one")["size"] == 100_000 and fs.cat(f"{top}two") == b"2"
    assert not fs.exists(f"{top}three")
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe(f"{top}one", b"replaced")
        1 / 0
    assert fs.info(f"{top}one")["size"] == 100_000


def test_what_exists_is_not_created(place):
    fs, top = place
    open("local", "w").write("local")
    for create in [
        lambda path: fs.put_file("local", path, mode="create"),
        lambda path: fs.pipe_file(path, b"piped", mode="create"),
    ]:
        with pytest.raises(FileExistsError):
            create(f"{top}top.txt")
        assert fs.cat(f"{top}top.txt") == b"0123456789"
        create(f"{top}fresh")
        fs.rm(f"{top}fresh")


def test_patterns_to_remove(place):
    fs, top = place
    fs.pipe({f"{top}w/a1": b"", f"{top}w/a2/x": b"", f"{top}w/b": b"", f"{top}w/[b]": b""})
    fs.rm(f"{top}w/a*", recursive=True)
    assert fs.ls(f"{top}w", detail=False) == [f"{top}w/[b]", f"{top}w/b"]
    fs.rm(f"{top}w/[b]", recursive=True)
    assert fs.ls(f"{top}w", detail=False) == [f"{top}w/b"]
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{top}w/none*", recursive=True)
    fs.rm(f"{top}w/**", recursive=True)
    assert not fs.exists(f"{top}w/b")


def test_a_pool_that_is_removed_is_made_again(work):
    fs = fsspec.filesystem("hardpack")
    for content in [b"first", b"second"]:
        fs.pipe("gone.hpk/x", content)
        assert fs.cat("gone.hpk/x") == content
        os.remove("gone.hpk")


def test_wrong_uses(pool):
    with pytest.raises(FileNotFoundError, match="cannot find a pool"):
        fsspec.filesystem("hardpack").ls("no/pool/here")
    with pytest.raises(hardpack.UsageError, match="put a cache in between"):
        fsspec.filesystem("hardpack", fo="memory://a.hpk")
    with pytest.raises(hardpack.UsageError, match="snapshot"):
        fsspec.filesystem("hardpack").pipe("a.hpk@then/x", b"")
