import pytest

from inclad.data import mvtec
from inclad.data.catalog import choose_size, load_tasks
from inclad.data.task import DataError


def problems(*arguments, **options) -> list[str]:
    with pytest.raises(DataError) as error:
        load_tasks(*arguments, **options)
    return error.value.problems


@pytest.fixture
def big_tree(tmp_path, picture):
    """Two equal categories of 12 training images, 10 good and 30 cut."""
    for category in ("a", "b"):
        for folder, count in (("train/good", 12), ("test/good", 10), ("test/cut", 30)):
            for index in range(count):
                path = tmp_path / category / folder / f"{index:03}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
    return tmp_path


def images(samples) -> list[str]:
    return [f"{sample.image.parent.name}/{sample.image.stem}" for sample in samples]


def test_one_dataset_keeps_bare_names(mvtec_tree):
    assert load_tasks("mvtec", root=str(mvtec_tree)) == mvtec.read(mvtec_tree)
    assert load_tasks("mvtec", ["nut"], roots={"mvtec": str(mvtec_tree)}) == mvtec.read(mvtec_tree, ["nut"])


def test_a_mixed_stream_has_long_names_in_the_order_asked_for(mvtec_tree):
    tasks = load_tasks("mixed", ["mvtec:nut", "elpv:mono", "mvtec:bolt"], roots={"mvtec": str(mvtec_tree)})
    assert [task.name for task in tasks] == ["mvtec:nut", "elpv:mono", "mvtec:bolt"]
    assert [task.dataset for task in tasks] == ["mvtec", "elpv", "mvtec"]


def test_bare_names_beside_long_ones_belong_to_the_dataset(mvtec_tree):
    tasks = load_tasks("mvtec", ["nut", "elpv:mono"], root=str(mvtec_tree))
    assert [task.name for task in tasks] == ["mvtec:nut", "elpv:mono"]


def test_problems_of_all_datasets_are_told_together(mvtec_tree):
    found = problems("mixed", ["mvtec:screw", "elpv:thin", "nut", "moon:x"], roots={"mvtec": str(mvtec_tree)})
    wanted = [
        "'nut' names no dataset",
        "no task 'screw'",
        "no task 'thin'",
        "dataset 'moon' is unknown; known: mini",
    ]
    assert len(found) == 4 and all(any(text in line for line in found) for text in wanted)


def test_an_unknown_dataset_lists_the_known_ones():
    assert problems("moon") == [
        "dataset 'moon' is unknown; known: mini, elpv, mvtec, visa, btad, mpdd, dagm, mtd, mixed"
    ]


def test_a_mixed_stream_without_tasks_is_refused():
    assert "needs its tasks listed" in problems("mixed")[0]


def test_one_text_is_not_a_list_of_tasks():
    assert "give a list" in problems("mini", "gear")[0]


def test_a_long_name_listed_twice_is_refused(mvtec_tree):
    names = ["mvtec:nut", "mvtec:nut"]
    assert "listed 2 times" in problems("mixed", names, roots={"mvtec": str(mvtec_tree)})[0]


@pytest.mark.parametrize("limit", ["max_train", "max_test"])
def test_a_negative_limit_is_refused(mvtec_tree, limit):
    assert f"{limit}: -1 is negative" in problems("mvtec", root=str(mvtec_tree), **{limit: -1})[0]


def test_a_negative_seed_is_refused(mvtec_tree):
    assert problems("mvtec", root=str(mvtec_tree), seed=-1) == ["seed: -1 is negative; give 0 or more"]


def test_a_root_that_is_no_text_is_refused():
    assert problems("mixed", ["mtd:blowhole"], roots={"mtd": 3}) == ["roots: mtd: expected a folder, got 3"]


@pytest.mark.parametrize("size", [-1, 100_000])
def test_an_absurd_image_size_is_refused(size):
    with pytest.raises(ValueError, match=f"^image_size: {size} is "):
        choose_size("mvtec", size)


def test_limits_are_counts_and_keep_the_order(big_tree):
    (task,) = load_tasks("mvtec", ["a"], str(big_tree), max_train=5, max_test=8)
    labels = [sample.label for sample in task.test]
    assert (len(task.train), labels.count(0), labels.count(1)) == (5, 2, 6)
    assert images(task.train) == sorted(images(task.train))
    assert images(task.test) == sorted(images(task.test))


def test_a_test_subset_keeps_one_of_each(big_tree):
    labels = [sample.label for sample in load_tasks("mvtec", ["a"], str(big_tree), max_test=2)[0].test]
    assert sorted(labels) == [0, 1]


def test_a_limit_above_the_count_keeps_all(big_tree):
    (task,) = load_tasks("mvtec", ["a"], str(big_tree), max_train=99, max_test=99)
    assert (len(task.train), len(task.test)) == (12, 40)


def test_a_subset_depends_on_the_seed(big_tree):
    first, again, other = (
        load_tasks("mvtec", ["a"], str(big_tree), max_train=5, seed=seed)[0].train for seed in (0, 0, 1)
    )
    assert first == again and first != other


def test_a_subset_does_not_depend_on_the_other_tasks(big_tree):
    options = {"max_train": 5, "max_test": 8}
    alone = load_tasks("mvtec", ["b"], str(big_tree), **options)[0]
    assert load_tasks("mvtec", [], str(big_tree), **options)[1] == alone
    mixed = load_tasks("mixed", ["mvtec:b"], roots={"mvtec": str(big_tree)}, **options)[0]
    assert (mixed.train, mixed.test) == (alone.train, alone.test)


def test_tasks_draw_different_subsets(big_tree):
    first, second = load_tasks("mvtec", [], str(big_tree), max_train=5)
    assert images(first.train) != images(second.train)


def test_a_larger_subset_holds_the_smaller_one(big_tree):
    small, large = (set(load_tasks("mvtec", ["a"], str(big_tree), max_train=n)[0].train) for n in (4, 9))
    assert small < large
