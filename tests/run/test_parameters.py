"""Strict parameters: what is accepted, and the one line that says what is not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell
from runner_project import PARAMETERS, notebook

from inclad.run.parameters import (
    MAX_BYTES,
    ParameterError,
    declared,
    load_yaml,
    parse_settings,
    read_parameters,
    resolve,
)

TYPED = """\
size: int = 3
rate: float = 0.5  # of learning
on: bool = True
names: list = ["01", "02"]
tasks: list[str] = []
rates: list[float] = [0.1]
roots: dict[str, str] = {}
extra: dict = {}
word: str = "a # b"  # not 'a'
results: str = "build/results/x"
"""


@pytest.fixture
def known():
    return declared(notebook(parameters=TYPED), "x.ipynb")


def test_the_cell_gives_names_types_defaults_and_comments(known):
    assert list(known)[:3] == ["size", "rate", "on"]
    assert known["tasks"].type == "list[str]"
    assert (known["rate"].default, known["rate"].comment) == (0.5, "of learning")
    assert (known["word"].default, known["word"].comment) == ("a # b", "not 'a'")
    assert known["rate"].line(0.25) == "rate: float = 0.25  # of learning"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("b = 2", "expected 'name: type = literal  # comment', got 'b = 2'"),
        ("b: int = 2 * 3", "default must be a literal"),
        ("b: Path = 'x'", "unknown type 'Path'"),
        ("B: int = 1", "lower case"),
        ("b: int", "expected 'name: type"),
        ("b: int = True", "expected int, got bool True"),
        ("b: list[str] = [1]", "b[0]: expected str, got int 1 (quote it: '1')"),
        ("size: int = 1", "declared twice"),
        ("import os", "expected 'name: type"),
        ("b: int = (", "parameters cell: '(' was never closed"),
    ],
)
def test_a_wrong_line_of_the_cell(line, told):
    with pytest.raises(ParameterError) as error:
        declared(notebook(parameters=PARAMETERS + line), "notebooks/x.ipynb")
    assert str(error.value).startswith("notebooks/x.ipynb: parameters cell")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("count", [0, 2])
def test_exactly_one_cell(count):
    template = notebook()
    extra = new_code_cell("a: int = 1", metadata={"tags": ["parameters"]})
    template.cells = [cell for cell in template.cells if not cell.metadata.get("tags")] + [extra] * count
    with pytest.raises(ParameterError, match=f"exactly one code cell tagged 'parameters', has {count}"):
        declared(template, "x")


def test_results_must_be_declared():
    with pytest.raises(ParameterError, match="must declare the folder it writes"):
        declared(notebook(parameters="a: int = 1"), "x")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1.", 1.0), (".5", 0.5), ("-2.5e+3", -2500.0), ("12", 12), ("-0", 0),
        ("true", True),
        ("False", False), ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("012", "012"),
        ("01", "01"), ("2024-01-02", "2024-01-02"), ("1_000", "1_000"), ("0x10", "0x10"), ("1:30", "1:30"),
        ("'3'", "3"), ("[1, 1e-3, a]", [1, 0.001, "a"]), ("null", None), ("", None), ("=", "="),
        ("9" * 30, "9" * 30), ("{'<<': 1}", {"<<": 1}),
    ],
)  # fmt: skip
def test_plain_values_mean_what_they_look_like(text, value):
    loaded = load_yaml(text, "x")
    assert (loaded, type(loaded)) == (value, type(value))


HOSTILE = {
    "aliases": "a: &x [1]\nb: *x",
    "bomb": "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]",
    "merge": "a: {<<: *x}",
    "object": "a: !!python/object/apply:os.system ['touch marker']",
    "tag": "a: !!binary aGk=",
    "local tag": "a: !thing 1",
    "duplicate": "size: 1\nsize: 2",
    "nested duplicate": "extra: {a: 1, a: 2}",
    "depth": "[" * 50 + "]" * 50,
    "deeper": "[" * 30000,
    "megabyte": "# " + "x" * 2**20,
    "two documents": "a: 1\n---\nb: 2",
    "broken": "a: [1",
    "tabs": "a:\n\t- 1",
    "control": "a: \x00",
    "key": "1: 2",
    "list as key": "? [1]\n: 2",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused_in_one_line(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "h.yml"
    path.write_text(text)
    with pytest.raises(ParameterError) as error:
        read_parameters(path, "params/h.yml")
    assert str(error.value).startswith("params/h.yml: ")
    assert "\n" not in str(error.value)
    assert [each.name for each in tmp_path.iterdir()] == ["h.yml"]


def test_other_broken_files(tmp_path):
    (tmp_path / "latin.yml").write_bytes(b"a: \xff")
    for path, told in (
        (tmp_path / "latin.yml", "UTF-8"),
        (tmp_path, "cannot be read"),
        (tmp_path / "no", "no such"),
    ):
        with pytest.raises(ParameterError, match=told):
            read_parameters(path, "p")
    (tmp_path / "full.yml").write_text("a: " + "x" * (MAX_BYTES - 4))
    assert len(read_parameters(tmp_path / "full.yml", "p")["a"]) == MAX_BYTES - 4


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"siez": 1}, "unknown parameter 'siez' (did you mean 'size'? known: size, rate, "),
        ({"a = 1; import os": 1}, "unknown parameter 'a = 1; import os' (known: size"),
        ({"results": "/etc"}, "results is set by the runner"),
        ({"rate": "1e-3x"}, "rate: expected float, got str '1e-3x'"),
        ({"rate": True}, "rate: expected float, got bool True"),
        ({"rate": float("inf")}, "rate: inf is not a finite number"),
        ({"rates": [1, float("nan")]}, "rates[1]: nan is not a finite number"),
        ({"size": 1.0}, "size: expected int, got float 1.0"),
        ({"size": True}, "size: expected int, got bool True"),
        ({"size": None}, "size: expected int, got nothing"),
        ({"word": 12}, "word: expected str, got int 12 (quote it: '12')"),
        ({"word": "\udc80"}, "word: text is not valid UTF-8"),
        ({"names": ["03", 4]}, "names[1]: expected str, got int 4 (quote it: '4')"),
        ({"tasks": [1]}, "tasks[0]: expected str, got int 1 (quote it: '1')"),
        ({"tasks": "a"}, "tasks: expected list, got str 'a'"),
        ({"roots": {"mvtec": 1}}, "roots.mvtec: expected str, got int 1"),
        ({"extra": {"a": [None]}}, "extra.a[0]: expected text, numbers, lists or mappings, got nothing"),
    ],
)
def test_wrong_values(known, values, told):
    with pytest.raises(ParameterError) as error:
        resolve(known, values, "params/x.yml")
    assert str(error.value).startswith(f"params/x.yml: {told}")


def test_all_problems_in_one_message(known):
    with pytest.raises(ParameterError) as error:
        resolve(known, {"siez": 1, "rate": "x", "tasks": [1, 2]}, "p")
    assert len(error.value.problems) == 4


def test_whole_numbers_serve_as_floats(known):
    values = resolve(known, {"rate": 1, "rates": [1, 2.5]}, "p")
    assert type(values["rate"]) is float
    assert [type(each) for each in values["rates"]] == [float, float]


def test_settings_are_read_by_the_declared_type(known):
    words = ["word=1e-3: [", "rate=1e-3", "tasks=['01', b]", "on=false", "roots={a: b=c}"]
    assert parse_settings(known, words) == {
        "word": "1e-3: [", "rate": 0.001, "tasks": ["01", "b"], "on": False, "roots": {"a": "b=c"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "word", ["size", "size=", "size=x", "size=&a 1", "wrod=1", "results=x", "size=1.5", "=1"]
)
def test_wrong_settings(known, word):
    with pytest.raises(ParameterError, match=r"^--set: ") as error:
        parse_settings(known, [word])
    assert "\n" not in str(error.value)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_any_text_loads_or_is_refused(text):
    try:
        load_yaml(text, "x")
    except ParameterError as error:
        assert str(error).startswith("x: ")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20).filter(lambda name: name not in ("size", "word", "source", "results")))
def test_no_name_gets_in_that_the_notebook_does_not_declare(name):
    with pytest.raises(ParameterError):
        resolve(declared(notebook(), "x"), {name: 1}, "p")
