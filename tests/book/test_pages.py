"""The written and the built pages, without a browser: contents, links, what they load and give away."""

import inspect
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import yaml

from inclad import metrics
from inclad.data import elpv, mini, mtd
from inclad.data.catalog import DATASETS
from inclad.data.sources import SOURCES
from inclad.data.task import Task
from inclad.reference import reference_table

PROJECT = Path(__file__).resolve().parents[2]
BOOK = PROJECT / "book"
ADDRESS = re.compile(r"(?:https?:)?//", re.IGNORECASE)
LOADING = {"src", "srcset", "data", "poster", "background", "action", "formaction", "xlink:href"}
OF_THE_THEME = {"window.print()", "toggleFullScreen()"}
PRIVATE = re.compile(r"/(?:home|root|Users)/\w[^\s\"'<&]*|[A-Z]:\\\\Users\\\\\w+")


class Page(HTMLParser):
    """What one page loads, what it links to, what can be linked to, and code in its attributes."""

    def __init__(self, path: Path):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.handlers: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in LOADING or (name == "href" and tag != "a"):
                self.loads.append(value or "")
            elif name == "href":
                self.links.append(value or "")
            elif name in ("id", "name"):
                self.places.add(value or "")
            elif name.startswith("on") and value not in OF_THE_THEME:
                self.handlers.append(f"{name}={value}")
            elif name == "style" and value and "url(" in value:
                self.loads += re.findall(r"url\(\s*['\"]?([^'\")]+)", value)
        if tag in ("iframe", "object", "embed", "base"):
            self.loads.append(f"//{tag} element")


def contents() -> list[str]:
    toc = yaml.safe_load((PROJECT / "_toc.yml").read_text())
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


def written_pages() -> list[Path]:
    return [*BOOK.glob("*.md"), *BOOK.glob("datasets/*.md")]


def html_files(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*.html") if "_static" not in path.relative_to(folder).parts]
    assert len(found) >= len(contents()), f"{folder}: only {len(found)} pages"
    return found


def outside(addresses: list[str]) -> list[str]:
    return [address for address in addresses if ADDRESS.match(address.strip())]


# the written pages


def test_every_written_page_is_in_the_contents_and_the_other_way_round():
    listed = {entry for entry in contents() if not entry.startswith("book/runs/")}
    assert listed == {path.relative_to(PROJECT).with_suffix("").as_posix() for path in written_pages()}


def test_every_run_in_the_contents_is_one_that_make_book_makes():
    listed = PROJECT / "params" / "book.yml"
    if not listed.is_file():
        pytest.skip("params/book.yml is not there yet")
    made = {entry["name"] for entry in yaml.safe_load(listed.read_text())}
    assert made == {Path(entry).name for entry in contents() if entry.startswith("book/runs/")}


def test_every_reference_is_used():
    keys = set(re.findall(r"^@\w+\{(\w+),", (BOOK / "references.bib").read_text(), re.MULTILINE))
    text = "".join(path.read_text() for path in written_pages())
    notebooks = "".join(path.read_text() for path in (PROJECT / "notebooks").glob("*.ipynb"))
    cited = {
        key
        for found in re.findall(r"\{cite(?::\w)?\}`([^`]+)`", text + notebooks)
        for key in found.split(",")
    }
    assert keys == {key.strip() for key in cited}


def test_the_example_of_the_r_matrix_is_computed_right():
    picture = (BOOK / "r_example.svg").read_text()
    R = np.full((3, 3), np.nan)
    R[np.tril_indices(3)] = [float(value) for value in re.findall(r">(0\.\d\d)<", picture)]
    table = dict(
        re.findall(r"^\| `(\w+)` \|[^|]*\| (-?[\d.]+) \|", (BOOK / "reading_r.md").read_text(), re.MULTILINE)
    )
    functions = {"final_avg": metrics.final_average}
    assert len(table) == 6
    for name, value in table.items():
        assert functions.get(name, getattr(metrics, name, None))(R) == pytest.approx(
            float(value), abs=1e-9
        ), name


def test_the_data_page_tells_the_size_of_the_mini_dataset():
    text = (BOOK / "data.md").read_text()
    default = {name: each.default for name, each in inspect.signature(mini.generate).parameters.items()}
    found = re.search(r"(\d+)\s+normal\s+training\s+images,\s+(\d+)\s+normal\s+and\s+(\d+)\s+damaged", text)
    assert [int(number) for number in found.groups()] == [
        default[name] for name in ("train", "good", "defective")
    ]
    assert f"| [mini](datasets/mini) | {len(mini.COMPONENTS)} |" in text


def counted(page: str) -> dict[str, list[int]]:
    """The table of counts on the page of a dataset, without its last row, which must be the sum of the others."""
    text = (BOOK / "datasets" / f"{page}.md").read_text()
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", text, re.MULTILINE)
    table = {name: [int(number.replace(",", "")) for number in numbers] for name, *numbers in rows}
    assert table.pop("**all**") == [sum(column) for column in zip(*table.values())]
    return table


def in_tasks(tasks: list[Task]) -> dict[str, list[int]]:
    return {
        task.name: [len(task.train), *(sum(s.label == label for s in task.test) for label in (0, 1))]
        for task in tasks
    }


@pytest.mark.parametrize("dataset", ["mvtec", "visa", "btad", "mpdd", "dagm"])
def test_the_page_of_a_dataset_has_the_published_counts(dataset):
    table = reference_table("dataset_counts").query("dataset == @dataset")
    expected = {
        row.category: [row.train_normal, row.test_normal, row.test_anomalous] for row in table.itertuples()
    }
    assert counted(dataset) == expected


def test_the_page_of_mini_has_the_counts_that_are_drawn():
    default = {name: each.default for name, each in inspect.signature(mini.generate).parameters.items()}
    counts = [default[name] for name in ("train", "good", "defective")]
    assert counted("mini") == dict.fromkeys(mini.COMPONENTS, counts)


def test_the_pages_of_elpv_and_the_tiles_have_the_counts_that_are_read():
    assert counted("elpv") == in_tasks(elpv.read())
    tiles = PROJECT / ".." / "shared" / "data" / "mtd"
    if not tiles.is_dir():
        pytest.skip(f"{tiles} is not here")
    assert counted("mtd") == in_tasks(mtd.read(tiles))


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_page_of_a_dataset_says_how_to_get_and_check_it(dataset):
    text = (BOOK / "datasets" / f"{dataset}.md").read_text()
    assert f"inclad data check {dataset}" in text
    if source := SOURCES.get(dataset):
        assert f"({source.page})" in text
        assert source.licence.split(",")[0] in text and source.size.removeprefix("about ") in text


# the built pages


def test_built_pages_load_nothing_from_elsewhere(book_html):
    bad = {path.name: found for path in html_files(book_html) if (found := outside(Page(path).loads))}
    assert not bad


def test_built_styles_load_nothing_from_elsewhere(book_html):
    for path in (book_html / "_static").rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", path.read_text()), path


def test_built_pages_hold_no_code_in_attributes(book_html):
    bad = {path.name: page.handlers for path in html_files(book_html) if (page := Page(path)).handlers}
    assert not bad


def test_a_planted_script_is_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        "<a href='https://x.invalid/'>fine</a><script src='https://x.invalid/a.js'></script>"
        "<link rel='stylesheet' href='//x.invalid/a.css'><img src='a.png' onerror='go()'>"
        "<iframe srcdoc='x'></iframe><p style='background: url(http://x.invalid/b.png)'>"
    )
    found = Page(page)
    assert outside(found.loads) == [
        "https://x.invalid/a.js",
        "//x.invalid/a.css",
        "//iframe element",
        "http://x.invalid/b.png",
    ]
    assert found.handlers == ["onerror=go()"]


def test_every_link_inside_the_book_leads_somewhere(book_html):
    pages = {path.resolve(): Page(path) for path in html_files(book_html)}
    bad = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not link:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].places):
                bad.append(f"{path.name}: {link}")
    assert not bad


def test_published_files_give_no_folder_of_a_person_away(book_html):
    texts = [*html_files(book_html), *(book_html / "_sources").rglob("*")]
    assert any(path.suffix == ".ipynb" for path in texts)
    bad = {}
    for path in texts:
        if path.is_file() and (found := PRIVATE.findall(path.read_text(errors="replace"))):
            bad[path.name] = found[:3]
    assert not bad
