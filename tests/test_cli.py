"""The command: its words, its exit status, its last line."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner_project import Project, notebook, pretend

from inclad.cache import FOLDER, Cache, content_key
from inclad.cli import main
from inclad.files import project_folder
from inclad.run.plan import book_runs, default_name, plan

BOOK = """\
- notebook: tiny
  params: params/a.yml
  name: tiny--a
  title: small
- notebook: tiny
  set: {size: 7, word: "01"}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    project = Project(tmp_path)
    project.write("params/a.yml", "size: 5\n")
    monkeypatch.chdir(tmp_path)
    return project


def run(capsys, *words):
    status = main(list(words))
    said = capsys.readouterr()
    return status, said.out, said.err


def test_run_then_current_then_forced(project):
    """The real command, once in a process of its own: executes, skips, executes."""
    first = project.run("run", "tiny", "--params", "params/a.yml")
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1] == "build/results/tiny--a"
    assert first.stdout.startswith("done     tiny--a  ")
    before = (project.root / "build/executed/tiny--a.ipynb").stat().st_mtime_ns
    second = project.run("run", "tiny", "--params", str(project.root / "params/a.yml"))
    assert second.stdout.splitlines() == [
        "current  tiny--a (nothing to do; --force runs it again)",
        "build/results/tiny--a",
    ]
    assert (project.root / "build/executed/tiny--a.ipynb").stat().st_mtime_ns == before
    assert (project.root / "build/results/tiny--a/table.csv").read_text() == "size,word\n5,a\n"
    third = project.run("run", "tiny", "--params", "params/a.yml", "--force")
    assert third.returncode == 0
    assert (project.root / "build/executed/tiny--a.ipynb").stat().st_mtime_ns > before


def test_status_says_why(project, capsys):
    project.write("params/book.yml", BOOK)
    pretend(plan(project.root, "tiny", "params/a.yml"))
    pretend(plan(project.root, "tiny", name="other"))
    lines = run(capsys, "status")[1].splitlines()
    missing = default_name("tiny", "", ["size=7", "word=01"])
    assert lines == ["current  tiny--a", f"missing  {missing}", "current  other"]
    project.write("params/a.yml", "size: 6\n")
    assert run(capsys, "status")[1].splitlines()[0] == "stale    tiny--a (parameters: size)"
    project.write("inclad/inner.py", "def number():\n    return 1\n")
    assert "stale    other (code: inclad/inner.py)" in run(capsys, "status")[1]
    (project.root / "notebooks/tiny.ipynb").unlink()
    project.write("params/book.yml", "[]")
    assert "stale    other (no notebook 'tiny' (known: none))" in run(capsys, "status")[1]


def test_status_of_an_empty_project(project, capsys):
    assert run(capsys, "status")[1].startswith("no runs yet")


def test_params_and_list(project, capsys):
    assert (
        run(capsys, "params", "tiny")[1].splitlines()[0]
        == "size     int  3                     how many numbers"
    )
    assert run(capsys, "list")[1] == "tiny                 A tiny notebook\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run"], "name a notebook"),
        (["run", "nope"], "no notebook 'nope' (known: tiny)"),
        (["run", "../tiny"], "notebook name '../tiny'"),
        (["run", "tiny", "--params", "params/none.yml"], "params/none.yml: no such file"),
        (["run", "tiny", "--params", "params"], "params: cannot be read"),
        (["run", "tiny", "--set", "siez=3"], "--set: unknown parameter 'siez' (did you mean 'size'?"),
        (["run", "tiny", "--name", "../x"], "run name '../x'"),
        (["run", "tiny", "--name", "x", "--params", "a", "--params", "b"], "--name names one"),
        (["run", "tiny", "--params", "params/a.yml", "--params", "params/a.yml"], "two of the runs"),
        (["run", "tiny", "--set", "source=build/results/x"], "tiny--default-90ee7c: needs build/results/x"),
        (["run", "--book"], "params/book.yml: no such file"),
        (["run", "tiny", "--book"], "--book runs what params/book.yml lists"),
        (["book", "--no-run"], "params/book.yml: no such file"),
    ],
)  # fmt: skip
def test_wrong_words_are_one_line_and_status_2(project, capsys, words, told):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith(told)
    assert err.count("\n") == 1
    assert not (project.root / "build").exists()


@pytest.mark.parametrize(
    "words", [[], ["fly"], ["run", "tiny", "--jobs", "0"], ["run", "tiny", "--timeout", "x"]]
)
def test_argparse_refuses_the_rest(project, capsys, words):
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1", "expected a list of runs"),
        ("- tiny", "run 1: expected a mapping"),
        ("- notebook: tiny\n- notebook: tiny", "run 2: the name 'tiny--default' is used twice"),
        ("- notebook: tiny\n  parms: x", "run 1: unknown key 'parms'"),
        ("- notebook: tiny\n  name: 3", "run 1: name: expected text, got 3"),
        ("- notebook: nope", "run 1: no notebook 'nope'"),
        ("- notebook: tiny\n  set: {size: x}", "run 1: --set: size: expected int, got str 'x'"),
        ("- notebook: tiny\n  set: [size]", "run 1: set: expected a mapping"),
    ],
)
def test_wrong_lists_of_runs(project, capsys, text, told):
    project.write("params/book.yml", text)
    status, _, err = run(capsys, "run", "--book")
    assert status == 2
    assert err.startswith(f"params/book.yml: {told}")


def test_the_list_of_runs(project):
    project.write("params/book.yml", BOOK)
    first, second = book_runs(project.root)
    assert (first.name, first.title, first.parameters["size"]) == ("tiny--a", "small", 5)
    assert second.parameters == {
        "size": 7, "word": "01", "source": "", "results": f"build/results/{second.name}",
    }  # fmt: skip
    assert second.command == "inclad run tiny --set size=7 --set word=01"
    named = plan(project.root, "tiny", "params/a.yml", ["word=a b"], "mine")
    assert named.command == "inclad run tiny --params params/a.yml --set 'word=a b' --name mine"


def test_outside_a_project(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "status")[0] == 2
    with pytest.raises(ValueError, match="not in the project"):
        project_folder(tmp_path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.text(max_size=20), st.sampled_from(["a/b", "a;b", "a\nb", "..", "{a}", "a.b", "-a", "~a", "é"])
    )
)
def test_names_cannot_leave_their_folders(project, text):
    for given_name in ({"notebook": text}, {"notebook": "tiny", "name": text}):
        try:
            planned = plan(project.root, **given_name)
        except ValueError:
            continue
        for path in (planned.template, planned.executed, planned.failed, planned.results):
            assert path.resolve().is_relative_to(project.root.resolve())
            assert path.resolve().parent.name in ("notebooks", "executed", "failed", "results")


def test_what_the_cache_holds_and_clearing_it(project, capsys):
    assert run(capsys, "cache")[:2] == (0, "build/cache/features: 0 entries, 0.00 GiB\n")
    assert not (project.root / "build").exists()
    cache = Cache(project.root / FOLDER, 1)
    for number in range(3):
        cache.put(content_key(number=number), {"x": torch.zeros(2_000_000)})
    project.write("build/cache/hashes.json", "{}")
    held = "build/cache/features: 3 entries, 0.02 GiB\n"
    assert run(capsys, "cache")[:2] == (0, held)
    assert run(capsys, "cache", "--clear") == (0, held + "cleared\n", "")
    assert run(capsys, "cache")[1] == "build/cache/features: 0 entries, 0.00 GiB\n"
    assert (project.root / "build/cache/hashes.json").exists()


def test_no_cache_outside_a_project(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in (["cache"], ["cache", "--clear"]):
        status, out, err = run(capsys, *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "is not in the project" in err


def test_a_failed_run_sets_the_status(project, capsys, monkeypatch):
    from inclad.run import engines
    from inclad.run.notebook import Outcome

    def execute(runs, **options):
        return [Outcome(run, "failed" if number else "done", "x") for number, run in enumerate(runs)]

    monkeypatch.setattr(engines, "execute", execute)
    project.write("params/book.yml", BOOK)
    status, out, _ = run(capsys, "run", "--book")
    assert status == 1
    assert out.startswith("1 of 2 runs did not finish: tiny--default-")
    assert run(capsys, "book")[0] == 1
    assert run(capsys, "run", "tiny")[:2] == (0, "build/results/tiny--default\n")


def test_a_notebook_that_is_none(project, capsys):
    project.write("notebooks/tiny.ipynb", "{")
    status, _, err = run(capsys, "run", "tiny")
    assert status == 2
    assert "tiny.ipynb: not a notebook" in err
    project.write("notebooks/tiny.ipynb", json.dumps(notebook(parameters="a: int = b")))
    assert run(capsys, "run", "tiny")[2].startswith(
        "notebooks/tiny.ipynb: parameters cell, line 1: a: default must"
    )
