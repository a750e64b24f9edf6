"""`docs/python.md` names everything that is public, and its examples run."""

import inspect
import re
import sqlite3
from pathlib import Path

import pytest

import hardpack

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "python.md"


@pytest.fixture(scope="module")
def text():
    if not PAGE.exists():
        pytest.skip("the documentation is not part of a source distribution")
    return PAGE.read_text(encoding="utf-8")


def test_the_examples_run(text, work, capsys):
    pytest.importorskip("fsspec")
    db = sqlite3.connect("wiki.db")
    db.execute("CREATE TABLE t(a)")
    db.executemany("INSERT INTO t VALUES (?)", [(f"row {n}",) for n in range(10_000)])
    db.commit()
    db.close()
    examples = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(examples) > 4
    names = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
        out = capsys.readouterr().out
        for comment in re.findall(r"print\(.*\) +# (.*)$", example, re.MULTILINE):
            assert comment in out


def test_everything_public_is_named(text):
    fenced = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    code = " ".join(fenced.findall(text) + re.findall(r"`[^`]+`", fenced.sub("", text)))
    names = set(re.findall(r"\w+", code))
    # These are results, and named by their fields.
    missing = (
        set(hardpack.__all__)
        - names
        - {"PoolPath", "ProgressCallback", "Snapshot", "Stat", "__version__"}
    )
    assert not missing
    methods = [name for name in vars(hardpack.Pool) if not name.startswith("_")]
    assert not {name for name in methods if name not in names} - {"address"}


def test_signatures_are_those_of_the_functions(text):
    for name in ["pack", "unpack", "info", "check", "uri_of"]:
        (given,) = re.findall(rf"^\| `{name}\((.*?)\)`", text, re.MULTILINE)
        parameters = inspect.signature(getattr(hardpack, name)).parameters.values()
        shown = [
            each.name if each.default is each.empty else f"{each.name}={each.default}"
            for each in parameters
        ]
        assert given.split(", ") == shown


def test_every_exception_is_in_the_table(text):
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)? ?\|", text, re.MULTILINE)
    shown = {name: base for name, base in rows if name.endswith(("Error", "NotSupported"))}
    errors = {
        name: value
        for name, value in vars(hardpack).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert set(shown) == set(errors)
    for name, base in shown.items():
        assert not base or base in [each.__name__ for each in errors[name].__mro__[1:]], name


def test_the_version_is_that_of_the_project():
    cargo = ROOT / "Cargo.toml"
    if not cargo.exists():
        pytest.skip("not in the repository")
    (version,) = re.findall(r'^version = "(.*)"$', cargo.read_text(), re.MULTILINE)
    assert hardpack.__version__ == version
    project = (ROOT / "python/pyproject.toml").read_text()
    assert f'version = "{version}"' in project
