"""The command `inclad`: words to calls, nothing else."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inclad.files import project_folder, write_atomic
from inclad.run.plan import Run, book_runs, known_runs, notebooks, plan, read_notebook, state


def main(words: list[str] | None = None) -> int:
    """Run one command; 0 = all well, 1 = a run failed, 2 = wrong words or parameters, 130 = interrupted."""
    options = _parser().parse_args(words)
    try:
        return options.call(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # `inclad status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inclad", description="Run the book's notebooks and build the book."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a notebook, or all of the book's, unless current")
    run.add_argument("notebook", nargs="?", help="its bare name, as `inclad list` shows it")
    run.add_argument("--book", action="store_true", help="all runs of params/book.yml")
    run.add_argument(
        "--params", action="append", default=[], metavar="FILE", help="YAML; given again: another run"
    )
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one parameter")
    run.add_argument("--name", default="", help="name of the run")
    run.add_argument("--force", action="store_true", help="run even what is current")
    _engine_options(run)
    run.set_defaults(call=_run)

    commands.add_parser("status", help="what is current, stale, missing, failed").set_defaults(call=_status)
    commands.add_parser("list", help="the notebooks").set_defaults(call=_list)

    params = commands.add_parser("params", help="the parameters of a notebook")
    params.add_argument("notebook")
    params.set_defaults(call=_params)

    scenarios = commands.add_parser("scenarios", help="the paper's 17 streams, and manifests of streams")
    actions = scenarios.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("list", help="their names and sizes").set_defaults(call=_list_scenarios)
    build = actions.add_parser("build", help="write one out: manifest.json and croissant.json")
    build.add_argument("name", nargs="?", default="", help="one of the 17; without it, your own --dataset")
    build.add_argument("--dataset", default="", help="dataset of a stream of your own")
    build.add_argument("--tasks", default="", metavar="A,B,C", help="its tasks in order (default: all)")
    build.add_argument("--root", default="", metavar="FOLDER", help="where the dataset lies")
    build.add_argument(
        "--roots", nargs="+", default=[], metavar="DATASET=FOLDER", help="of a stream over several"
    )
    build.add_argument("--out", required=True, metavar="FOLDER", help="receives the two files")
    build.add_argument("--licence", default="", help="of parts of your own")
    build.add_argument("--homepage", default="", help="of parts of your own")
    build.set_defaults(call=_build_scenario)

    book = commands.add_parser("book", help="bring the book's runs up to date and build the book")
    book.add_argument("--no-run", action="store_true", help="run nothing; an error when a run is not current")
    _engine_options(book)
    book.set_defaults(call=_book)

    cache = commands.add_parser("cache", help="what the cache of frozen features holds on disk")
    cache.add_argument("--clear", action="store_true", help="remove all of it; it is made again when needed")
    cache.set_defaults(call=_cache)

    data = commands.add_parser("data", help="look at a dataset").add_subparsers(
        required=True, metavar="COMMAND"
    )
    check = data.add_parser("check", help="counts beside the published ones, and everything that is wrong")
    check.add_argument("--json", action="store_true", help="for programs")
    check.set_defaults(call=_data_check)
    show = data.add_parser("show", help="draw examples: normal and defective, the defect outlined")
    show.add_argument("--out", metavar="FILE", default="", help="PNG (default: NAME-examples.png)")
    show.set_defaults(call=_data_show)
    for each in (check, show):
        each.add_argument("name", metavar="NAME", help="mini, elpv, mvtec, visa, btad, mpdd, dagm, mtd")
        each.add_argument("root", metavar="ROOT", nargs="?", default="", help="its folder")
    return parser


def _engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs", type=_positive(int), default=0, metavar="N", help="runs at a time (default: cores)"
    )
    parser.add_argument("--timeout", type=_positive(float), metavar="S", help="seconds a run may take")


def _positive(kind: type) -> object:
    def read(text: str) -> int | float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    read.__name__ = kind.__name__  # argparse names it in its message
    return read


def _run(options: argparse.Namespace) -> int:
    project = project_folder()
    if options.book:
        if options.notebook or options.params or options.set or options.name:
            raise ValueError(
                "--book runs what params/book.yml lists: no notebook, --params, --set or --name with it"
            )
        runs = book_runs(project)
    else:
        if not options.notebook:
            raise ValueError("name a notebook (`inclad list` shows them) or use --book")
        if options.name and len(options.params) > 1:
            raise ValueError("--name names one run: give one --params with it")
        files = options.params or [""]
        runs = [plan(project, options.notebook, file, options.set, options.name) for file in files]
        if len({run.name for run in runs}) < len(runs):
            raise ValueError("two of the runs have the same name: run them one by one with --name")
    return _execute(runs, options, force=options.force)


def _execute(runs: list[Run], options: argparse.Namespace, *, force: bool = False) -> int:
    from inclad.run import engines

    def report(line: str) -> None:
        print(line, flush=True)

    try:
        outcomes = engines.execute(
            runs, jobs=options.jobs, force=force, timeout=options.timeout, report=report
        )
    except engines.Interrupted:
        print("interrupted: nothing half-written was kept", file=sys.stderr)
        return 130
    bad = [outcome for outcome in outcomes if outcome.status not in ("done", "current")]
    if bad and len(runs) > 1:
        report(f"{len(bad)} of {len(runs)} runs did not finish: {', '.join(each.run.name for each in bad)}")
    if outcomes and outcomes[-1].status in ("done", "current"):
        report(runs[-1].results.relative_to(runs[-1].project).as_posix())
    return 1 if bad else 0


def _status(options: argparse.Namespace) -> int:
    rows = []
    for name, run, problem in known_runs(project_folder()):
        condition, why = state(run) if run else ("stale", problem)
        rows.append((condition, f"{name} ({why.splitlines()[0]})" if why else name))
    for condition, text in rows:
        print(f"{condition:<8} {text}")
    if not rows:
        print("no runs yet: params/book.yml lists none, and none was executed")
    return 0


def _list(options: argparse.Namespace) -> int:
    project = project_folder()
    for name in notebooks(project):
        cells = read_notebook(project / "notebooks" / f"{name}.ipynb").cells
        lines = [line for cell in cells if cell.cell_type == "markdown" for line in cell.source.splitlines()]
        title = next((line.lstrip("# ") for line in lines if line.startswith("# ")), "")
        print(f"{name:<20} {title}".rstrip())
    return 0


def _params(options: argparse.Namespace) -> int:
    from inclad.run.parameters import declared
    from inclad.run.plan import template_path

    project = project_folder()
    path = template_path(project, options.notebook)
    known = declared(read_notebook(path), path.relative_to(project).as_posix()).values()
    rows = [(each.name, each.type, repr(each.default), each.comment) for each in known]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[3]]).rstrip())
    return 0


def _list_scenarios(options: argparse.Namespace) -> int:
    from inclad.published import scenario_table

    print(f"{'scenario':<26} {'tasks':>5} {'images':>7} {'anomalous':>10} (of the test images)")
    for row in scenario_table().itertuples():
        print(f"{row.scenario:<26} {row.tasks:>5} {row.samples:>7} {row.anomaly_pct_test:>8.2f} %")
    return 0


def _build_scenario(options: argparse.Namespace) -> int:
    from inclad.data import manifest
    from inclad.published import own_scenario, published_scenario

    if bool(options.name) == bool(options.dataset):
        raise ValueError("name a scenario (`inclad scenarios list`), or give --dataset for one of your own")
    pairs = [text.partition("=") for text in options.roots]
    if any(not (name and folder) for name, _, folder in pairs):
        raise ValueError("--roots: expected DATASET=FOLDER, such as mvtec=/data/mvtec")
    if options.name:
        stream, source = published_scenario(options.name.replace("-", "_")), None
    else:
        stream, source = own_scenario(
            options.dataset, options.tasks, options.out, options.licence, options.homepage
        )
    roots = {name: folder for name, _, folder in pairs}
    content = manifest.build(*stream, root=options.root, roots=roots, own=source)
    print(f"{len(content['tasks'])} tasks, {len(content['images'])} images")
    with _writing(options.out):
        paths = manifest.write(content, options.out)
    for path in paths:
        print(path.as_posix())
    return 0


@contextmanager
def _writing(out: str | Path) -> Iterator[None]:
    """What can't be written inside becomes one line."""
    try:
        yield
    except OSError as error:
        place = error.filename or out
        raise ValueError(f"{place}: {error.strerror}; name a place that can be written") from error


def _cache(options: argparse.Namespace) -> int:
    from inclad.cache import FOLDER, Cache  # torch takes a second to load, and other commands do without

    cache = Cache(project_folder() / FOLDER, limit_gib=1)
    print(f"{FOLDER}: {cache.count()} entries, {cache.size() / 2**30:.2f} GiB")
    if options.clear:
        cache.clear()
        print("cleared")
    return 0


def _data_check(options: argparse.Namespace) -> int:
    from inclad.data.inventory import as_json, as_text, take_inventory

    found = take_inventory(options.name, options.root)
    print(as_json(found) if options.json else as_text(found))
    return 1 if found.errors else 0


def _data_show(options: argparse.Namespace) -> int:
    from inclad import pictures
    from inclad.data.catalog import choose_size, load_tasks
    from inclad.evaluate import example_rows
    from inclad.results import png

    tasks = load_tasks(options.name, root=options.root)
    out = Path(options.out or f"{options.name}-examples.png")
    sheet = pictures.contact_sheet(example_rows(tasks, choose_size(options.name)))
    with _writing(out):
        write_atomic(out, png(sheet, limit=8_000_000))  # a file on disk, not a page of the book
    print(out.as_posix())
    return 0


def _book(options: argparse.Namespace) -> int:
    from inclad.run import book

    project = project_folder()
    runs = book_runs(project)
    if not options.no_run:
        status = _execute(runs, options)
        if status:
            return status
    return book.make(project, runs)


if __name__ == "__main__":
    sys.exit(main())
