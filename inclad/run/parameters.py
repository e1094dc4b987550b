"""What a notebook may be told: its typed parameters, strict YAML files for them, and errors worth reading."""

import ast
import difflib
import io
import json
import math
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml

NAME = re.compile(r"[a-z][a-z0-9_]*")
MAX_BYTES = 64 * 1024
MAX_DEPTH = 10
SCALARS = ("int", "float", "str", "bool")
FORM = "name: type = literal  # comment"


class ParameterError(ValueError):
    """Everything that is wrong with one source of parameters, one problem a line, each with that source."""

    def __init__(self, where: str, problems: list[str]):
        self.problems = [f"{where}: {problem}" for problem in problems]
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Parameter:
    """One line of the parameters cell; `type` is its annotation as text, such as `list[str]`."""

    name: str
    type: str
    default: object
    comment: str = ""

    def line(self, value: object) -> str:
        """The line as it stands in a notebook, with `value` instead of the default."""
        return f"{self.name}: {self.type} = {value!r}" + (f"  # {self.comment}" if self.comment else "")


def declared(notebook: nbformat.NotebookNode, where: str) -> dict[str, Parameter]:
    """The parameters of a notebook, in the order of its one cell tagged `parameters`.

    Only literals are allowed: a value computed from another parameter would keep the default of that one.
    Raises ParameterError naming `where` with every line that is not `name: type = literal`.
    """
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1 or cells[0].cell_type != "code":
        raise ParameterError(where, [f"needs exactly one code cell tagged 'parameters', has {len(cells)}"])
    source = cells[0].source
    try:
        statements = ast.parse(source).body
        comments = _comments(source)
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        raise ParameterError(where, [f"parameters cell: {error}"]) from None
    found: dict[str, Parameter] = {}
    problems = []
    for statement in statements:
        try:
            parameter = _parameter(statement, comments)
            if parameter.name in found:
                raise ValueError("is declared twice")
            found[parameter.name] = parameter
        except ValueError as error:
            problems.append(f"parameters cell, line {statement.lineno}: {error}")
    if not problems and getattr(found.get("results"), "type", None) != "str":
        problems.append(
            'parameters cell: must declare the folder it writes, results: str = "build/results/..."'
        )
    if problems:
        raise ParameterError(where, problems)
    return found


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("#").strip() for t in tokens if t.type == tokenize.COMMENT}


def _parameter(statement: ast.stmt, comments: dict[int, str]) -> Parameter:
    if not (
        isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value
    ):
        raise ValueError(f"expected {FORM!r}, got {ast.unparse(statement).splitlines()[0]!r}")
    name, kind = statement.target.id, ast.unparse(statement.annotation)
    if not NAME.fullmatch(name):
        raise ValueError(f"name {name!r} must be lower case letters, digits and _")
    if not _known_type(kind):
        raise ValueError(
            f"{name}: unknown type {kind!r} (known: int, float, str, bool, list, dict, list[str], ...)"
        )
    try:
        default = ast.literal_eval(statement.value)
    except ValueError:
        raise ValueError(f"{name}: default must be a literal, got {ast.unparse(statement.value)!r}") from None
    problems: list[str] = []
    default = _typed(default, kind, name, problems)
    if problems:
        raise ValueError("; ".join(problems))
    return Parameter(name, kind, default, comments.get(statement.end_lineno, ""))


def _known_type(kind: str) -> bool:
    if kind in (*SCALARS, "list", "dict"):
        return True
    if kind.startswith("list[") and kind.endswith("]"):
        return _known_type(kind[5:-1])
    return kind.startswith("dict[str, ") and kind.endswith("]") and _known_type(kind[10:-1])


class _Loader(yaml.SafeLoader):
    """Plain scalars mean what they look like: 1e-3 is a float; yes, on, dates and 012 stay text."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012  (PyYAML keeps its rules here; an empty one drops the traps)


_NUMBER = r"[-+]?(?:0|[1-9][0-9]*)"
for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|True|false|False", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,17})", list("-+0123456789")),
    (
        "float",
        rf"{_NUMBER}\.[0-9]*(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9]+(?:[eE][-+]?[0-9]+)?|{_NUMBER}[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    pairs = [(loader.construct_object(key, deep=True), loader.construct_object(value, deep=True), key)
             for key, value in node.value]  # fmt: skip
    result: dict = {}
    for name, value, key in pairs:
        line = key.start_mark.line + 1
        if not isinstance(name, str):
            raise ParameterError(f"line {line}", [f"key {name!r} is not text (quote it)"])
        if name in result:
            raise ParameterError(f"line {line}", [f"key {name!r} is given twice"])
        result[name] = value
    return result


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load_yaml(text: str, where: str) -> object:
    """One YAML document of plain values. Raises ParameterError, one line, for anything clever or broken."""
    try:
        if len(text.encode()) > MAX_BYTES:
            raise ParameterError(where, [f"longer than {MAX_BYTES // 1024} kB"])
        depth = documents = 0
        for event in yaml.parse(text, Loader=_Loader):
            line = f"line {event.start_mark.line + 1}: "
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ParameterError(where, [line + "anchors (&) and aliases (*) are not allowed"])
            if getattr(event, "tag", None):
                raise ParameterError(where, [line + f"tag {event.tag!r} is not allowed"])
            documents += isinstance(event, yaml.DocumentStartEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or documents > 1:
                what = "more than one document" if documents > 1 else f"nested deeper than {MAX_DEPTH}"
                raise ParameterError(where, [line + what])
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ParameterError(where, [f"{line}not valid YAML: {reason}"]) from None
    except UnicodeEncodeError:
        raise ParameterError(where, ["not valid UTF-8"]) from None
    except ParameterError as error:
        if error.problems[0].startswith(where):
            raise
        raise ParameterError(where, error.problems) from None


def read_yaml(path: Path, where: str) -> object:
    """`load_yaml` of a file of at most 64 kB; `where` names it in errors."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode()
    except UnicodeDecodeError:
        raise ParameterError(where, ["not valid UTF-8"]) from None
    except FileNotFoundError:
        raise ParameterError(where, ["no such file"]) from None
    except OSError as error:
        raise ParameterError(where, [f"cannot be read: {error.strerror}"]) from None
    return load_yaml(text, where)


def read_parameters(path: Path, where: str) -> dict[str, object]:
    """The mapping in a parameter file; an empty file is an empty mapping."""
    values = read_yaml(path, where)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ParameterError(where, [f"expected lines of 'name: value', got a {type(values).__name__}"])
    return values


def resolve(known: dict[str, Parameter], given: dict[str, object], where: str) -> dict[str, object]:
    """Every parameter with its value: the default unless `given`.

    Raises ParameterError with all unknown names and wrong values. `results` belongs to the runner.
    """
    problems: list[str] = []
    for name in given:
        if name == "results":
            problems.append("results is set by the runner (name the run with --name)")
        elif name not in known:
            problems.append(_unknown(name, known))
    resolved = {}
    for name, parameter in known.items():
        value = given.get(name, parameter.default)
        resolved[name] = _typed(value, parameter.type, name, problems, _element_type(parameter.default))
    if problems:
        raise ParameterError(where, problems)
    return resolved


def parse_settings(known: dict[str, Parameter], settings: list[str]) -> dict[str, object]:
    """The values of `--set KEY=VALUE` words, read by the declared type; a str takes the text as it is."""
    given: dict[str, object] = {}
    problems = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            problems.append(f"expected KEY=VALUE, got {setting!r}")
        elif name in given:
            problems.append(f"{name} is given twice")
        elif name not in known:
            problems.append(_unknown(name, known))
        elif known[name].type == "str":
            given[name] = text
        else:
            try:
                given[name] = load_yaml(text, name)
            except ParameterError as error:
                problems += error.problems
    if problems:
        raise ParameterError("--set", problems)
    resolve(known, given, "--set")
    return given


def _unknown(name: str, known: dict[str, Parameter]) -> str:
    names = [each for each in known if each != "results"]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown parameter {_short(name)} ({hint}known: {', '.join(names)})"


def _element_type(default: object) -> str:
    """`str` when a list's default holds only text: other elements are then a slip, such as 1 for '1'."""
    is_text = isinstance(default, list) and default and all(isinstance(each, str) for each in default)
    return "str" if is_text else ""


def check_elements(values: list, kind: str, where: str, problems: list[str]) -> list:
    """The elements of a list as `kind`; each that is not adds a problem, with the advice to quote text."""
    return [_typed(value, kind, f"{where}[{index}]", problems) for index, value in enumerate(values)]


def _typed(value: object, kind: str, where: str, problems: list[str], element: str = "") -> object:
    """`value` as `kind`; whatever does not fit is added to `problems`."""
    base, _, inner = kind.partition("[")
    inner = inner[:-1]
    if base == "float" and type(value) is int:
        value = float(value)
    if type(value).__name__ != base:
        got = "nothing" if value is None else f"{type(value).__name__} {_short(value)}"
        quote = f" (quote it: '{value}')" if base == "str" and type(value) in (int, float, bool) else ""
        problems.append(f"{where}: expected {base}, got {got}{quote}")
    elif base == "list":
        inner = inner or element
        return check_elements(value, inner, where, problems) if inner else _free(value, where, problems)
    elif base == "dict":
        if not inner:
            return _free(value, where, problems)
        inner = inner.removeprefix("str, ")
        return {name: _typed(each, inner, f"{where}.{name}", problems) for name, each in value.items()}
    else:
        _free(value, where, problems)
    return value


def _free(value: object, where: str, problems: list[str]) -> object:
    """Check a value of no declared element type: plain, finite, nothing missing, text for keys."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            _free(each, f"{where}[{index}]", problems)
    elif isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(name, str):
                problems.append(f"{where}: key {_short(name)} is not text (quote it)")
            _free(each, f"{where}.{name}", problems)
    elif isinstance(value, float) and not math.isfinite(value):
        problems.append(f"{where}: {value} is not a finite number")
    elif type(value).__name__ not in SCALARS:
        got = "nothing" if value is None else type(value).__name__
        problems.append(f"{where}: expected text, numbers, lists or mappings, got {got}")
    elif isinstance(value, str) and not _encodable(value):
        problems.append(f"{where}: text is not valid UTF-8")
    return value


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def to_json(value: object) -> str:
    """The one text of a value that keys are made from: sorted, without spaces, strict."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
