"""What a run depends on is in its key, by name; prose is not."""

import importlib.metadata
import json
import os

import pytest
from runner_project import PARAMETERS, WORK, notebook

from inclad.run import key as key_module
from inclad.run.key import Hashes, differences, imported_files, key, key_parts, needed_run

WHERE = "notebooks/tiny.ipynb"
VALUES = {"size": 3, "word": "a", "source": "", "results": "build/results/x"}


def parts(project, template=None, **values):
    return key_parts(template or notebook(), WHERE, VALUES | values, project.root)


def change(project, template=None, **values):
    before = parts(project)
    return lambda: differences(before, parts(project, template, **values))


def test_nothing_changed(project):
    assert differences(parts(project), parts(project)) == ""
    assert key(parts(project)) == key(parts(project))


def test_prose_and_the_results_folder_are_not_in_the_key(project):
    template = notebook()
    template.cells[0].source = "# Other words"
    template.cells[2].metadata["mystnb"] = {"figure": {"caption": "better"}}
    assert change(project, template, results="build/results/y")() == ""


def test_code_and_tags_are(project):
    assert change(project, notebook(WORK + "1"))() == f"code: {WHERE}"
    tagged = notebook()
    tagged.cells[2].metadata["tags"] = ["raises-exception"]
    assert change(project, tagged)() == f"code: {WHERE}"


def test_parameters_by_name_and_type(project):
    assert change(project, size=4)() == "parameters: size"
    assert change(project, size=3.0)() == "parameters: size"


def test_a_module_two_imports_deep(project):
    changed = change(project)
    project.write("inclad/inner.py", "def number():\n    return 41\n")
    assert changed() == "code: inclad/inner.py"
    project.write("inclad/inner.py", "def number():\n    return 40\n")
    assert changed() == ""
    project.write("inclad/unused.py", "x = 1")
    assert changed() == ""
    project.write("inclad/__init__.py", "x = 1")
    assert changed() == "code: inclad/__init__.py"


@pytest.mark.parametrize(
    "source",
    [
        "import inclad.sub.deep",
        "from inclad.sub import deep",
        "from inclad.sub.deep import x",
        "def f():\n    from inclad.sub import deep as d",
        "%matplotlib inline\nimport inclad.sub.deep",
        "import importlib\nimportlib.import_module('inclad.sub.deep')",
        "from inclad import sibling",
    ],
)
def test_all_ways_to_import(project, source):
    project.write("inclad/sub/__init__.py", "")
    project.write("inclad/sub/deep.py", "from .. import outer\nfrom . import beside\nfrom .beside import y")
    project.write("inclad/sub/beside.py", "import inclad.sub.deep")
    project.write("inclad/sub/orders.csv", "a,b")
    project.write("inclad/sibling.py", "from .sub import deep")
    found = {path.relative_to(project.root).as_posix() for path in imported_files([source], project.root)}
    expected = {
        "__init__.py",
        "sub/__init__.py",
        "sub/deep.py",
        "sub/beside.py",
        "sub/orders.csv",
        "outer.py",
    }
    assert found - {"inclad/sibling.py"} == {f"inclad/{name}" for name in expected | {"inner.py"}}


def test_data_that_a_parameter_names(project, tmp_path_factory):
    image = project.write("data/a/1.png", "one")
    outside = tmp_path_factory.mktemp("outside") / "weights.bin"
    outside.write_text("w")
    for value in ("data", "data/a/1.png", str(project.root / "data"), str(image)):
        image.write_text("one")
        before = parts(project, source=value)
        assert f"data: {value}" in before
        image.write_text("two")
        assert differences(before, parts(project, source=value)) == f"data: {value}"
    before = parts(project, source="data")
    image.rename(image.with_name("2.png"))
    assert differences(before, parts(project, source="data")) == "data: data"
    assert f"data: {outside}" in parts(project, source=str(outside))
    assert "data: data" in parts(project, source={"deep": ["data"]})


@pytest.mark.parametrize("value", ["", ".", "..", "/", "no/such", "a\0b", "x" * 5000, "~", "*"])
def test_values_that_name_nothing(project, value):
    assert not [part for part in parts(project, source=value) if part.startswith("data")]


def test_a_results_folder_counts_by_its_tables(project):
    for name in ("run.json", "a.csv", "b.npz", "c.png"):
        project.write(f"build/results/r/{name}", "{}")
    changed = change(project, source="build/results/r")
    before = parts(project, source="build/results/r")
    project.write("build/results/r/run.json", '{"seconds": 2}')
    project.write("build/results/r/c.png", "other")
    assert differences(before, parts(project, source="build/results/r")) == ""
    project.write("build/results/r/b.npz", "other")
    assert differences(before, parts(project, source="build/results/r")) == "data: build/results/r"
    assert "parameters: source" in changed()


def test_versions(project, monkeypatch):
    before = parts(project)
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0" if name == "torch" else real(name))
    monkeypatch.setattr(key_module.platform, "python_version", lambda: "3.99")
    assert differences(before, parts(project)) == "versions: python, torch"


def test_hashes_are_remembered_but_never_trusted_when_torn(project):
    file = project.write("data/x", "one")
    first = parts(project, source="data")
    known = json.loads((project.root / "build/cache/hashes.json").read_text())
    assert list(known) == [str(file)]
    for text in ('{"half', "[]", '{"' + str(file) + '": 3}'):
        project.write("build/cache/hashes.json", text)
        assert parts(project, source="data") == first
    # same size and time, another file: the inode gives it away
    stat = file.stat()
    other = project.write("data/.y", "two")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(file)
    assert Hashes(project.root).digest(file) != first["data: data"]
    assert differences(first, parts(project, source="data")) == "data: data"


def test_needed_run():
    assert needed_run("build/results/stream--x") == "stream--x"
    assert needed_run("build/results/stream--x/table.csv") == "stream--x"
    assert [needed_run(text) for text in ("build/results", "results/x", "", "/build/results/x")] == [None] * 4


def test_parameters_fixture_is_the_notebooks():
    assert all(f"{name}:" in PARAMETERS for name in VALUES)
