"""Any folder in the layout of MVTec AD (Bergmann et al. 2019), which MPDD and many others share.

<category>/train/good, <category>/test/<good or defect>, <category>/ground_truth/<defect>/<stem>_mask.png
"""

from pathlib import Path

from inclad.data.folder import choose, existing_root, image_files, subfolders, visible
from inclad.data.task import DataError, Sample, Task

LAYOUT = "one folder a category, each with train/good, test/<defect> and ground_truth/<defect>"


def read(
    root: Path | str | None,
    names: list[str] | None = None,
    *,
    dataset: str = "mvtec",
    normal: str = "good",
    layout: str = LAYOUT,
) -> list[Task]:
    """Read the named categories (None: all, in natural order) below `root`, one task each.

    `normal` names the folder of normal images, `layout` says in messages what belongs in `root`.
    Only train/good is training data. A mask belongs to the image of the same stem (or stem + `_mask`) in
    the same defect folder, whatever the suffixes; a defective image without one has mask None.
    Raises one DataError with everything that is wrong.
    """
    root = existing_root(root, dataset, layout)
    problems: list[str] = []
    known = _categories(root, layout, problems)
    tasks = [_task(root, name, dataset, normal, problems) for name in choose(names, known, str(root))]
    if problems:
        raise DataError(list(dict.fromkeys(problems)), tasks)
    return tasks


def _categories(root: Path, layout: str, problems: list[str]) -> list[str]:
    """Names of the folders that hold train or test, or nothing at all (a copy that broke off)."""
    if is_category(root):
        raise DataError(
            [f"{root}: is itself one category (it holds train or test); give {root.resolve().parent}"]
        )
    folders = subfolders(root, root, problems)
    names = [folder.name for folder in folders if is_category(folder) or not visible(folder, root, problems)]
    if any(is_category(root / name) for name in names):
        return names
    for folder in folders:
        inner = [path.name for path in subfolders(folder, root, problems) if is_category(path)]
        if inner:
            names = ", ".join(inner[:3])
            raise DataError(
                [f"{root}: no category here, but {folder} holds {len(inner)} ({names}); give that"]
            )
    found = ", ".join(path.name for path in visible(root, root, [])[:5]) or "nothing"
    raise DataError([*problems, f"{root}: no category found, it holds {found}; expected {layout}"])


def is_category(folder: Path) -> bool:
    """Whether `folder` looks like one component: it holds train or test."""
    return (folder / "train").is_dir() or (folder / "test").is_dir()


def _task(root: Path, name: str, dataset: str, normal: str, problems: list[str]) -> Task:
    category = root / name
    if not visible(category, root, problems):
        problems.append(f"{category}: empty category; copy it again or remove the folder")
        return Task(dataset, name, (), ())
    before = len(problems)
    train = tuple(Sample(path) for path in image_files(category / "train" / normal, root, problems))
    test: list[Sample] = []
    defects = subfolders(category / "test", root, problems)
    for folder in defects:
        images = image_files(folder, root, problems)
        if folder.name == normal:
            test += [Sample(path) for path in images]
        else:
            masks = _pair(images, category / "ground_truth" / folder.name, root, problems)
            test += [Sample(path, 1, folder.name, masks.get(path)) for path in images]
    for folder in subfolders(category / "ground_truth", root, problems):
        if folder.name != normal and folder.name not in {defect.name for defect in defects}:
            _pair([], folder, root, problems)
    if not train and len(problems) == before:
        problems.append(f"{category / 'train' / normal}: no normal training images; put them there")
    if not test and len(problems) == before:
        problems.append(f"{category / 'test'}: no test images; expected test/{normal} and test/<defect>")
    return Task(dataset, name, train, tuple(test))


def _pair(images: list[Path], folder: Path, root: Path, problems: list[str]) -> dict[Path, Path]:
    """Pair the images of one defect with the masks in `folder` by stem, never by position."""
    masks: dict[str, Path] = {}
    for path in image_files(folder, root, problems):
        if path.stem in masks:
            problems.append(f"{path}: a second mask beside {masks[path.stem].name}; keep one")
        masks[path.stem] = path
    paired: dict[Path, Path] = {}
    owners: dict[str, Path] = {}
    for image in images:
        stem = f"{image.stem}_mask" if f"{image.stem}_mask" in masks else image.stem
        if stem not in masks:
            continue
        if stem in owners:
            problems.append(
                f"{image}: shares its mask {masks[stem].name} with {owners[stem].name}; rename one"
            )
        owners[stem] = image
        paired[image] = masks[stem]
    problems += [
        f"{path}: mask without an image; expected {path.stem.removesuffix('_mask')}.* in the test folder of "
        f"{folder.name}, restore it or remove the mask"
        for stem, path in masks.items()
        if stem not in owners
    ]
    return paired
