"""DAGM 2007 (Wieler and Hahn): ten drawn textures, ClassN/{Train,Test}/NNNN.PNG, each with a folder Label.

Label/Labels.txt names the defective images, Label/NNNN_label.PNG holds a coarse ellipse around each defect:
pixel figures measure the ellipse, not the defect. Train holds defective images too. They are dropped, since
training data are normal by definition. Some copies nest ClassN/ClassN/Train.
"""

from pathlib import Path

from inclad.data.folder import choose, existing_root, image_files, subfolders, unwrap, visible
from inclad.data.task import DataError, Sample, Task

LAYOUT = "Class1 to Class10, each with Train/NNNN.PNG, Train/Label, Test/NNNN.PNG and Test/Label"


def read(root: Path | str | None, names: list[str] | None = None) -> list[Task]:
    """Read the named classes (None: all there, in natural order) below `root`, one task each.

    An image is anomalous when Labels.txt says so; without that file, when it has a label image. Names are
    compared in any case. Raises one DataError with everything that is wrong.
    """
    root = existing_root(unwrap(root, "DAGM_KaggleUpload"), "dagm", LAYOUT)
    problems: list[str] = []
    folders = {}
    for folder in subfolders(root, root, problems):
        folder = _child(folder, folder.name, root) or folder
        if _child(folder, "Train", root) or _child(folder, "Test", root):
            folders[folder.name] = folder
    if not folders:
        found = ", ".join(path.name for path in visible(root, root, [])[:5]) or "nothing"
        raise DataError([*problems, f"{root}: no class found, it holds {found}; expected {LAYOUT}"])
    tasks = []
    for name in choose(names, list(folders), str(root)):
        train, test = (_samples(folders[name], part, root, problems) for part in ("Train", "Test"))
        normal = tuple(sample for sample in train if sample.label == 0)
        tasks.append(Task("dagm", name, normal, tuple(test)))
    if problems:
        raise DataError(list(dict.fromkeys(problems)), tasks)
    return tasks


def _child(folder: Path, name: str, root: Path) -> Path | None:
    """What `folder` holds under `name`, in any case; None when there is nothing."""
    return next((path for path in visible(folder, root, []) if path.name.lower() == name.lower()), None)


def _samples(category: Path, part: str, root: Path, problems: list[str]) -> list[Sample]:
    """All images of Train or Test, normal and anomalous."""
    folder = _child(category, part, root) or category / part
    labels = _child(folder, "Label", root) or folder / "Label"
    table = _child(labels, "Labels.txt", root)
    images = {path.stem.lower(): path for path in image_files(folder, root, problems)}
    masks = {path.stem.lower().removesuffix("_label"): path for path in image_files(labels, root, problems)}
    if not images:
        problems.append(f"{folder}: no images; expected NNNN.PNG there")
    elif not masks and table is None:
        problems.append(
            f"{labels}: neither Labels.txt nor label images; without them defective images would count as "
            "normal, copy the folder again"
        )
    problems += [
        f"{path}: label image without an image; restore {stem}.PNG in {folder} or remove it"
        for stem, path in masks.items()
        if stem not in images
    ]
    defective = _listed(table, images, masks, problems) if table else masks.keys()
    return [
        Sample(path, 1, "defective", masks.get(stem)) if stem in defective else Sample(path)
        for stem, path in images.items()
    ]


def _listed(table: Path, images: dict[str, Path], masks: dict[str, Path], problems: list[str]) -> set[str]:
    """Stems that Labels.txt calls defective; its rows: number, 0 or 1, image, 0, label image."""
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        problems.append(f"{table}: cannot be read; it comes with the images, copy it again")
        return set(masks)
    flags: dict[str, bool] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if len(fields) < 2:  # the first line is a lone 1
            continue
        if len(fields) < 3 or fields[1] not in ("0", "1"):
            problems.append(f"{table}, line {number}: expected number, 0 or 1, image; copy the file again")
            continue
        stem = Path(fields[2]).stem.lower()
        flags[stem] = fields[1] == "1"
        if stem not in images:
            problems.append(f"{table}, line {number}: {fields[2]} is not there; copy it again")
    unlisted = [path for stem, path in images.items() if stem not in flags]
    if unlisted:
        problems.append(
            f"{table}: says nothing of {len(unlisted)} images (first: {unlisted[0].name}); copy it again"
        )
    contrary = [path for stem, path in masks.items() if flags.get(stem) is False]
    if contrary:
        problems.append(
            f"{table}: calls {len(contrary)} images normal that have a label image (first: "
            f"{contrary[0].name}); one of the two is wrong, copy both again"
        )
    return {stem for stem, flag in flags.items() if flag}
