"""What may not go onto a published page: scripts, frames, event handlers and addresses outside the book."""

import json
import re
from html.parser import HTMLParser

FORBIDDEN_TAGS = {"script", "iframe", "frame", "object", "embed", "applet", "form", "base", "meta", "link"}
ADDRESSES = {
    "src", "srcset", "href", "xlink:href", "data", "action", "formaction", "poster", "background", "cite",
    "longdesc", "manifest", "ping",
}  # fmt: skip
MIME_TYPES = {
    "text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/jpeg", "image/svg+xml",
    "application/json", "application/vnd.jupyter.widget-view+json",
}  # fmt: skip
WIDGET_MODULES = {"@jupyter-widgets/base", "@jupyter-widgets/controls", "@jupyter-widgets/output"}

# Written so that browsers act on them even where a parser sees only broken text.
_RAW = re.compile(r"<\s*/?\s*(script|iframe)\b|<[a-z][^<>]*\son[a-z]+\s*=", re.I)
_CODE = re.compile(r"(javascript|vbscript)\s*:", re.I)
_CODE_LINK = re.compile(r"\]\(\s*<?\s*(javascript|vbscript|data)\s*:", re.I)
_CODE_BLOCK = re.compile(
    r"^[ \t]*(`{3,}|~{3,})(?!\{(?!code|math))[^\n]*\n(?:.*?\n)??[ \t]*\1[`~]*[ \t]*$", re.M | re.S
)
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)", re.S)
_OUTSIDE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:|//|\\\\)", re.I)
_CSS = re.compile(r"@import|expression\s*\(|url\s*\(\s*['\"]?\s*(?:[a-z][a-z0-9+.-]*:(?!image/)|//)", re.I)


class _Reader(HTMLParser):
    def __init__(self, prose: bool):
        super().__init__(convert_charrefs=True)
        self.prose, self.problems, self.in_style = prose, [], False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.in_style = tag == "style"
        if tag in FORBIDDEN_TAGS:
            self.problems.append(f"<{tag}> is not allowed")
        for name, value in attributes:
            value = re.sub(r"[\x00-\x20]", "", value or "")
            if name.startswith("on"):
                self.problems.append(f"{name}= is not allowed")
            elif name in ADDRESSES and not self._inside(tag, name, value):
                self.problems.append(f"{name}= leads outside the book: {value[:60]!r}")
            elif name == "style" and _CSS.search(value):
                self.problems.append(f"style= leads outside the book: {value[:60]!r}")

    def _inside(self, tag: str, name: str, value: str) -> bool:
        if self.prose and tag == "a" and name == "href" and value.lower().startswith("https://"):
            return True  # a link that the reader may follow; nothing is loaded
        if name in ("src", "href", "xlink:href") and re.match(r"data:image/(png|jpeg|gif);base64,", value):
            return True
        return not _OUTSIDE.match(value) and not (name == "srcset" and re.search(r"(^|,)\s*\w+:|//", value))

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False

    def handle_data(self, data: str) -> None:
        if self.in_style and _CSS.search(data):
            self.problems.append(f"<style> leads outside the book: {data.strip()[:60]!r}")


def html_problems(text: str, *, prose: bool = False) -> list[str]:
    """What is wrong with HTML that a page would show as it is; in `prose` links to https pages are fine."""
    reader = _Reader(prose)
    reader.feed(text)
    if not prose and re.match(r"<[a-z!?/]", reader.rawdata, re.I):  # prose may say a <b
        reader.problems.append(f"a tag is not closed: {reader.rawdata[:60]!r}")
    reader.close()
    raw = _RAW.search(text) or (_CODE_LINK if prose else _CODE).search(text)
    if raw and not reader.problems:
        reader.problems.append(f"{raw[0][:60]!r} is not allowed")
    return reader.problems


def markdown_problems(text: str) -> list[str]:
    """The same for Markdown, which may quote code; also raw directives and pictures from elsewhere."""
    problems = []
    if re.search(r"^\s*[`~:]{3,}\s*\{\s*raw", text, re.M) or re.search(r"\{raw\}`", text):
        problems.append("{raw} is not allowed")
    text = _CODE_BLOCK.sub("", text)
    text = re.sub(
        r"^[ \t>]*[`~]{3,}", "", text, flags=re.M
    )  # what is left are directives: their body is shown
    text = _CODE_SPAN.sub("", text)
    outside = re.search(r"!\[[^\]]*\]\(\s*<?\s*(?:[a-z][a-z0-9+.-]*:|//)", text, re.I)
    outside = outside or re.search(r"\{(image|figure)\}\s*(?:[a-z][a-z0-9+.-]*:|//)", text, re.I)
    if outside:
        problems.append(f"a picture from outside the book: {outside[0]!r}")
    text = re.sub(r"<(https?://|mailto:)[^\s<>]*>", "", text)
    # `a < b` and a lone `<` are no tags
    text = re.sub(r"<(?![a-zA-Z!?/])", "", text)
    return problems + html_problems(text, prose=True)


def widget_problems(state: dict) -> list[str]:
    """What is wrong with saved widgets: modules that are not ipywidgets' own, addresses, unsafe HTML."""
    problems = []
    for model in state.get("state", {}).values():
        named = {"model_module": model.get("model_module")}
        named |= {name: value for name, value in model.get("state", {}).items() if name.endswith("_module")}
        for name, module in named.items():
            if module is not None and module not in WIDGET_MODULES:
                problems.append(f"widget {name} {module!r} is not one of {', '.join(sorted(WIDGET_MODULES))}")
        strings = list(_strings(model.get("state", {})))
        if any(re.search(r"https?://", text, re.I) for text in strings):
            problems.append(f"widget {model.get('model_name')} holds an address (http)")
        problems += [problem for text in strings if "<" in text for problem in html_problems(text)]
    return problems


def output_problems(output: dict) -> list[str]:
    """What is wrong with one output of a code cell."""
    problems = []
    for kind, content in output.get("data", {}).items():
        text = content if isinstance(content, str) else json.dumps(content)
        if kind not in MIME_TYPES:
            problems.append(f"output of type {kind} is not allowed")
        elif kind in ("text/html", "image/svg+xml"):
            problems += html_problems(text)
        elif kind == "text/markdown":
            problems += markdown_problems(text)
    return problems


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for each in value.values() for text in _strings(each)]
    return [text for each in value for text in _strings(each)] if isinstance(value, list) else []
