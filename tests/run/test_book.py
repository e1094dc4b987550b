"""Pages: what is on them, what may never be, and a book that is built whole or not at all."""

import base64
import copy
import os
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from runner_project import notebook, pretend

from inclad.run import book
from inclad.run.page import WIDGETS, publish
from inclad.run.plan import plan
from inclad.run.safe import html_problems, markdown_problems, widget_problems

PIXEL = base64.b64encode(b"not really a picture").decode()


def display(mime: str, content: object, **metadata: object) -> dict:
    return {"output_type": "display_data", "data": {mime: content}, "metadata": metadata}


def page_of(project, run) -> nbformat.NotebookNode:
    return nbformat.read(project.root / "book/runs" / f"{run.name}.ipynb", 4)


@pytest.fixture
def run(project):
    project.write("params/x.yml", "size: 5\n")
    return plan(project.root, "tiny", "params/x.yml", name="tiny--x")


def test_a_page_has_todays_prose_and_the_outputs_of_the_run(project, run):
    pretend(run, [], [display("image/png", PIXEL, **{"image/png": {"alt": "Five bars"}})])
    template = notebook()
    template.cells[
        0
    ].source = "(top)=\n# New words\n\nSee {numref}`fig`, [](#top), [how](../book/how.md) and `fig`."
    template.cells[2].metadata["mystnb"] = {"figure": {"name": "fig", "caption": "As {ref}`here <top>`."}}
    project.notebook("tiny", template)
    assert publish(run, "five")
    page = page_of(project, run)
    nbformat.validate(page)
    assert page.cells[0].source == (
        "(top-tiny--x)=\n# New words: five\n\n"
        "See {numref}`fig-tiny--x`, [](#top-tiny--x), [how](../how.md) and `fig`."
    )  # fmt: skip
    assert page.cells[1].source.splitlines() == [
        "size: int = 5  # how many numbers",
        "word: str = 'a'",
        "source: str = ''  # a file or a folder",
        "results: str = 'build/results/tiny--x'",
    ]
    picture = page.cells[2]
    assert picture.metadata.mystnb.image.alt == "Five bars"
    assert picture.metadata.mystnb.figure == {
        "name": "fig-tiny--x",
        "caption": "As {ref}`here <top-tiny--x>`.",
    }
    assert picture.outputs[0].data["image/png"] == PIXEL
    assert [cell.id for cell in page.cells] == [f"tiny--x-{number:03d}" for number in range(5)]
    assert "inclad run tiny --params params/x.yml\n" in page.cells[-1].source
    assert "2 s on cpu" in page.cells[-1].source
    assert page.metadata.kernelspec.name == "python3"


def test_each_of_several_pictures_keeps_its_own_alt_text(project, run):
    def picture(alt: str) -> dict:
        return display("image/png", PIXEL, **{"image/png": {"alt": alt}})

    pretend(run, [], [picture("One"), display("text/markdown", "first"), picture("Two")])
    assert publish(run)
    shown = [cell for cell in page_of(project, run).cells if cell.metadata.get("mystnb")]
    assert [cell.metadata.mystnb.image.alt for cell in shown] == ["One", "Two"]
    assert [len(cell.outputs) for cell in shown] == [2, 1]
    assert shown[1].source and shown[1].metadata.tags == ["remove-input"]  # no source, no page


def test_the_same_page_keeps_its_time(project, run):
    pretend(run, results={"a.png": "p", "note.md": "n", "table.csv": "t"})
    assert publish(run)
    folder = project.root / "book/runs"
    files = [folder / "tiny--x.ipynb", folder / "tiny--x/a.png", folder / "tiny--x/note.md"]
    times = [path.stat().st_mtime_ns for path in files]
    assert project.files("book/runs/tiny--x") == ["a.png", "note.md"]
    assert not publish(run)
    assert [path.stat().st_mtime_ns for path in files] == times
    (run.results / "a.png").unlink()
    assert publish(run)
    assert project.files("book/runs/tiny--x") == ["note.md"]


def test_nothing_of_the_machine_is_on_a_page(project, run):
    home = Path.home()
    text = f"{project.root}/data {project.root} {home}/x {sys.prefix}/lib /home/somebody/y /Users/me/z "
    text += f"build/tmp/tiny--x.{os.getpid()}-1700000000/results /tmp/ipykernel_77/12.py:3: UserWarning"
    stream = {"output_type": "stream", "name": "stderr", "text": text}
    pretend(run, [stream], [display("text/html", f"<p title='{project.root}/a'>{text}</p>")])
    publish(run)
    page = (project.root / "book/runs/tiny--x.ipynb").read_text()
    for secret in (str(project.root), f"{home}/", sys.prefix, "/home/", "/Users/", "ipykernel_", "build/tmp"):
        assert secret not in page
    assert "data . ~/x <python>/lib ~/y ~/z build/results/tiny--x 12.py:3: UserWarning" in page


def test_the_colophon_names_weights(project, run):
    weights = {"model": "net", "source": "package x", "sha256": "ab" * 32}
    pretend(run, weights=weights, peak_memory_mib=812.4, device="cuda (H`200)\n# x")
    publish(run)
    source = page_of(project, run).cells[-1].source
    assert "- 2 s on cuda (H 200) # x, 812 MiB of memory\n" in source
    assert "- backbone weights: `net`, `package x`, sha256 `abababababababab`\n" in source
    assert "versions: python 3." in source


SAFE_HTML = {
    "styled": pd.DataFrame({"a": [1, 2]}).style.set_caption("<b>T</b>").background_gradient().to_html(),
    "table": pd.DataFrame({"a": ["<script>alert(1)</script>", "x onclick=1"]}).to_html(),
    "picture": f'<img alt="a" src="data:image/png;base64,{PIXEL}">',
    "inside": '<a href="#top">up</a> <a href="../protocol.html">how</a>',
    "text": "1 < 2 & on = 3, <b>bold</b>",
}


@pytest.mark.parametrize("html", SAFE_HTML.values(), ids=SAFE_HTML)
def test_html_that_may_be_shown(project, run, html):
    pretend(run, [display("text/html", html)])
    assert publish(run)


HOSTILE_HTML = {
    "script": "<script>alert(1)</script>",
    "script case": "<ScRiPt src=x>",
    "script space": "< script>",
    "iframe": "<iframe srcdoc='x'></iframe>",
    "onerror": "<img src=x onerror=alert(1)>",
    "onerror slash": "<img/src='x'/onerror=alert(1)>",
    "onload": "<svg\nonload = 'x'>",
    "javascript": "<a href='javascript:alert(1)'>x</a>",
    "javascript entity": "<a href='java&#115;cript:alert(1)'>x</a>",
    "javascript tab": "<a href='java\tscript:alert(1)'>x</a>",
    "javascript case": "<a href=' JavaScript:alert(1)'>x</a>",
    "data page": "<a href='data:text/html,<p>'>x</a>",
    "svg data": "<img src='data:image/svg+xml;base64,AAAA'>",
    "picture": "<img src='https://example.org/a.png'>",
    "picture no scheme": "<img src='//example.org/a.png'>",
    "picture back": "<img src='\\\\example.org\\a.png'>",
    "srcset": "<img srcset='a.png 1x, https://example.org/a.png 2x'>",
    "link": "<a href='https://example.org'>x</a>",
    "stylesheet": "<link rel=stylesheet href=a.css>",
    "style": "<style>p {background: url(https://example.org/x)}</style>",
    "style import": "<style>@import 'a.css';</style>",
    "style attribute": "<p style=\"background: url('//example.org/x')\">",
    "meta": "<meta http-equiv=refresh content=0>",
    "form": "<form action=x>",
    "object": "<object data=x>",
    "base": "<base href=x>",
    "unclosed": "<b>x</b><img src=x ",
    "in a comment that ends": "<!-- --><script>x</script>",
}


@pytest.mark.parametrize("html", HOSTILE_HTML.values(), ids=HOSTILE_HTML)
def test_html_that_may_not(project, run, html):
    pretend(run, [], [display("text/html", f"<p>before</p>{html}")])
    with pytest.raises(ValueError, match=r"^notebooks/tiny\.ipynb \(tiny--x\), cell 3: ") as error:
        publish(run)
    assert "\n" not in str(error.value)
    assert not (project.root / "book").exists()


def test_every_kind_of_output_is_looked_at(project, run):
    hostile = "<script>x</script>"
    for mime in ("image/svg+xml", "text/markdown", "application/javascript", "application/x-other"):
        pretend(run, [], [display(mime, hostile)])
        with pytest.raises(ValueError, match="cell 3"):
            publish(run)
    pretend(
        run,
        [],
        [display("text/plain", hostile), {"output_type": "stream", "name": "stdout", "text": hostile}],
    )
    assert publish(run)


def test_all_refusals_in_one_message(project, run):
    pretend(run, [display("text/html", "<form>")], [display("text/html", "<base>")], results={"a.md": "x"})
    with pytest.raises(ValueError) as error:
        publish(run)
    assert [text.split(",")[1].split(":")[0] for text in str(error.value).splitlines()] == [
        " cell 2",
        " cell 3",
    ]


@pytest.mark.parametrize(
    ("name", "text"), [("a.md", "<script>"), ("a.svg", "<svg onload='x'/>"), ("b.md", "![](http://x/y)")]
)
def test_files_beside_the_page(project, run, name, text):
    pretend(run, results={name: text})
    with pytest.raises(ValueError, match=f"^build/results/tiny--x/{name}: "):
        publish(run)
    assert not (project.root / "book").exists()


SAFE_PROSE = [
    "[a paper](https://example.org/x) and <https://example.org> and <a href='https://example.org'>x</a>",
    "```{code-block} html\n<script>x</script>\n```\n\n~~~\n<iframe>\n~~~\n````md\n```\n<iframe>\n```\n````",
    "Code `<script>` and ``<iframe>``:\n\n```html\n<script>x</script>\n```\nend",
    "$a <b$ and $c < d$, x <- y, JavaScript: the language",
    "![a](runs/a.png)\n```{image} a.png\n:alt: a\n```",
]
HOSTILE_PROSE = [
    "<script>x</script>", "a <img src=x onerror=y> b", "![a](https://example.org/a.png)",
    "![a](//example.org/a.png)", "```{code-block} html\n<b>\n```\n<iframe>", "````md\n```\n````\n<iframe>",
    "```{raw} html\n<p>\n```", ":::{raw} html\n:::", "```{image} https://example.org/a.png\n```",
    "[x](javascript:alert(1))", "<img src='https://example.org/a.png'>", "`a` <iframe> `b`",
    "```{note}\n<script>x</script>\n```",
]  # fmt: skip


@pytest.mark.parametrize("text", SAFE_PROSE)
def test_prose_that_may_be_shown(text):
    assert markdown_problems(text) == []


@pytest.mark.parametrize("text", HOSTILE_PROSE)
def test_prose_that_may_not(text):
    assert len(markdown_problems(text)) > 0


def test_hostile_prose_is_refused_with_its_cell(project, run):
    pretend(run)
    template = notebook()
    template.cells[0].source = "# T\n<script>x</script>"
    project.notebook("tiny", template)
    with pytest.raises(ValueError, match=r"\(tiny--x\), cell 1: <script> is not allowed"):
        publish(run)


def widget(module="@jupyter-widgets/controls", **state) -> dict:
    state = {"_model_module": module, "_view_module": module, "_model_name": "M"} | state
    model = {"model_module": module, "model_name": "M", "model_module_version": "2.0.0", "state": state}
    return {"state": {"abc": model}}


HOSTILE_WIDGETS = {
    "module": widget("https://example.org/evil"),
    "other module": widget("anywidget"),
    "prefix": widget("@jupyter-widgets/controls/../../x"),
    "view": widget(_view_module="x"),
    "address": widget(value="see http://example.org"),
    "html": widget(value="<img src=x onerror=y>"),
    "deep": widget(options=["a", ["<script>"]]),
}


@pytest.mark.parametrize("state", HOSTILE_WIDGETS.values(), ids=HOSTILE_WIDGETS)
def test_widgets_that_may_not_be_shown(state):
    assert len(widget_problems(state)) > 0


def test_widgets_are_kept(project, run):
    pretend(run)
    state = widget(value="<b>x</b>", children=["IPY_MODEL_abc"]) | {"version_major": 2}
    assert widget_problems(state) == []
    executed = nbformat.read(run.executed, 4)
    executed.metadata["widgets"] = {WIDGETS: copy.deepcopy(state)}
    nbformat.write(executed, run.executed)
    publish(run)
    assert page_of(project, run).metadata.widgets[WIDGETS] == state
    executed.metadata["widgets"] = {WIDGETS: HOSTILE_WIDGETS["module"]}
    nbformat.write(executed, run.executed)
    with pytest.raises(ValueError, match=r"widgets: widget model_module .*evil. is not one of"):
        publish(run)


def test_html_problems_are_told_once_each():
    assert html_problems("<p>x</p>") == []
    assert html_problems("<script>x</script>") == ["<script> is not allowed"]


# --- the book ---


@pytest.fixture
def small_book(project):
    project.write(
        "_config.yml", "title: T\nonly_build_toc_files: true\nexecute: {execute_notebooks: 'off'}\n"
    )
    project.write("_toc.yml", "format: jb-book\nroot: book/index\nchapters:\n- file: book/runs/tiny--x\n")
    project.write("book/index.md", "# Start\n\n```{include} runs/tiny--x/note.md\n```\n")
    project.write("params/book.yml", "- notebook: tiny\n  name: tiny--x\n")
    run = plan(project.root, "tiny", name="tiny--x")
    pretend(run, results={"note.md": "The number is 43."})
    return project


def test_the_book_is_built_once_and_stays_when_a_build_fails(small_book):
    project = small_book
    index = project.root / "_build/html/book/index.html"
    first = project.run("book")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "The number is 43." in index.read_text()
    assert "How this page was made" in (project.root / "_build/html/book/runs/tiny--x.html").read_text()
    time = index.stat().st_mtime_ns
    second = project.run("book", "--no-run")
    assert second.stdout == "current  _build/html/index.html\n"
    project.write("book/index.md", "# Start\n\n{ref}`nowhere`\n")
    third = project.run("book", "--no-run")
    assert third.returncode == 1
    assert "nowhere" in third.stderr
    assert "see build/book.log" in third.stderr
    assert index.stat().st_mtime_ns == time
    assert [name for name in project.files("build/tmp") if not name.endswith(".lock")] == []


def test_stale_runs_are_never_published(small_book):
    project = small_book
    run = plan(project.root, "tiny", name="tiny--x")
    assert book.publish_all(project.root, [run])
    assert not book.publish_all(project.root, [run])
    project.write("inclad/inner.py", "def number():\n    return 1\n")
    with pytest.raises(
        ValueError, match=r"^tiny--x is stale \(code: inclad/inner.py\)\nbring them up to date first"
    ):
        book.publish_all(project.root, [run])


def test_pages_of_runs_that_left_the_list_are_removed(small_book):
    project = small_book
    runs = [plan(project.root, "tiny", name=name) for name in ("tiny--x", "tiny--y")]
    for run in runs:
        pretend(run, results={"note.md": "n"})
    book.publish_all(project.root, runs)
    assert project.files("book/runs") == ["tiny--x", "tiny--x.ipynb", "tiny--y", "tiny--y.ipynb"]
    assert page_of(project, runs[1]).cells[0].source.startswith("# A tiny notebook: y\n")
    assert book.publish_all(project.root, runs[:1])
    assert project.files("book/runs") == ["tiny--x", "tiny--x.ipynb"]
    assert page_of(project, runs[0]).cells[0].source.startswith("# A tiny notebook\n")
