"""What may import what: each room of the package, and the rooms it may look into."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "inclad"

# From the ground floor up. A room is a folder or a file of `inclad`; it imports itself and what is named.
GROUND = {"files", "cache", "maps", "neighbors", "metrics", "reference"}
DATA = {"data", "files"}
FEATURES = {"backbones", "features", "cache", "data", "files"}
ROOMS = {
    **dict.fromkeys(GROUND, GROUND),
    "cache": {"files", "data"},  # a damaged image is told with its path
    "data": {"files", "reference"},
    "backbones": GROUND,
    "features": FEATURES,
    "detectors": FEATURES | {"maps", "neighbors"},
    "continual": FEATURES | {"maps", "neighbors", "detectors"},
    "evaluate": FEATURES | {"metrics", "maps"},
    "experts": FEATURES | {"evaluate", "continual", "detectors"},
    "stream": FEATURES | {"evaluate", "continual", "detectors"},
    "scenarios": {"reference", "metrics"},
    "results": {"files", "metrics"},
    "run": {"files", "backbones"},
}


def imports(path: Path) -> set[str]:
    """Rooms that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [
                f"{node.module}.{alias.name}" if node.module == "inclad" else node.module
                for alias in node.names
            ]
        found |= {name.split(".")[1] for name in names if name.startswith("inclad.")}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_below(room):
    files = [*(PACKAGE / room).rglob("*.py")] or [PACKAGE / f"{room}.py"]
    for path in files:
        assert imports(path) <= ROOMS[room] | {room}, path


def test_only_notebooks_import_the_paper_and_the_pages():
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] not in ("paper", "detector_pages.py", "detector_pictures.py"):
            assert not imports(path) & {"paper", "detector_pages", "detector_pictures"}, path
