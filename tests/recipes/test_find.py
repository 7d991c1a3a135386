"""Finding a recipe: shipped names, the user's files, and what to say when there is neither."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass

import optax
import pytest

from paceline.base.errors import RecipeError, TaskError
from paceline.recipes import find
from paceline.recipes.find import SHIPPED, find_recipe
from paceline.recipes.recipe import Job, Recipe, RunShape
from paceline.tasks.task import task

SHAPE = RunShape(batch=8, steps=None, epochs=3, seed=1)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """`write(source)`: the path of a file with it."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return str(path)

    return write


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_shipped_name_is_a_recipe(name):
    """Under its own name, with a summary, and options that all have defaults."""
    recipe = find_recipe(name)
    assert isinstance(recipe, Recipe)
    assert recipe.name == name and recipe.summary
    assert recipe.options() == recipe.options()


@pytest.mark.parametrize(
    ("target", "nearest"), [("imgae", "perhaps 'image'"), ("liner", "perhaps 'linear'"), ("mine.py", None)]
)
def test_an_unknown_name_is_named_with_the_nearest(target, nearest):
    """What it is not, and what there is."""
    with pytest.raises(RecipeError, match="neither a recipe nor a Python file") as caught:
        find_recipe(target)
    assert repr(target) in caught.value.what
    assert ("perhaps" in caught.value.what) == (nearest is not None)
    assert nearest is None or nearest in caught.value.what
    assert "linear, image" in caught.value.fix and "defines task() or recipe" in caught.value.fix


def test_a_folder_or_another_ending_is_no_file_of_python(tmp_path):
    """A folder `a.py`, a file `a.txt`."""
    (tmp_path / "a.py").mkdir()
    (tmp_path / "a.txt").write_text("x = 1\n")
    for name in ("a.py", "a.txt"):
        with pytest.raises(RecipeError, match="neither a recipe nor a Python file"):
            find_recipe(str(tmp_path / name))


def test_a_recipe_whose_package_is_missing_says_how_to_get_it(monkeypatch):
    """Without flax: the extra that brings it."""

    def missing(name):
        raise ModuleNotFoundError("No module named 'flax'", name="flax")

    monkeypatch.setattr(find.importlib, "import_module", missing)
    with pytest.raises(RecipeError, match="needs the package 'flax'") as caught:
        find_recipe("image")
    assert caught.value.fix == "pip install 'paceline[recipes]'"


RECIPE = "import paceline\nrecipe = paceline.Recipe(build=lambda options, shape: {}, name='other')\n"


def test_a_recipe_object_of_a_file_is_taken_as_it_is(write):
    """Its name and its defaults."""
    recipe = find_recipe(write(RECIPE))
    assert (recipe.name, recipe.batch, recipe.epochs) == ("other", 64, 1)


def test_a_task_function_of_a_file_becomes_a_recipe(write):
    """Named as the file, without options of its own."""
    recipe = find_recipe(write("def task():\n    return 3\n", "my_task.py"))
    assert recipe.name == "my_task"
    with pytest.raises(RecipeError, match=r"task\(\) in .*my_task.py returned a int") as caught:
        recipe.make_job(recipe.options(), SHAPE)
    assert "paceline.Job" in caught.value.fix


def test_a_recipe_without_a_name_is_called_like_its_file(write):
    """Reports and run folders of two such files can be told apart."""
    assert find_recipe(write(RECIPE.replace(", name='other'", ""), "my_task.py")).name == "my_task"


def test_an_imported_task_function_is_not_the_users_own(write):
    """`from paceline import task` alone defines nothing to train."""
    with pytest.raises(RecipeError, match=r"defines neither recipe nor task\(\)"):
        find_recipe(write("from paceline import task\n"))


def test_a_recipe_object_comes_before_a_task_function(write):
    """A file may import `task` for its own use."""
    assert find_recipe(write(RECIPE + "def task():\n    raise AssertionError\n")).name == "other"


def test_two_files_of_one_name_do_not_mix(write, tmp_path):
    """a/mine.py and b/mine.py are two modules."""
    for folder in "ab":
        (tmp_path / folder).mkdir()
        write(RECIPE.replace("other", folder), f"{folder}/mine.py")
    assert [find_recipe(str(tmp_path / folder / "mine.py")).name for folder in "ab"] == ["a", "b"]


BAD = {
    "nothing": ("x = 1\n", RecipeError, "defines neither recipe nor task()"),
    "a recipe of another type": ("recipe = {'batch': 3}\n", RecipeError, "defines a recipe of type dict"),
    "a task that is no function": ("task = 3\n", RecipeError, "defines neither recipe nor task()"),
    "an error at import": ("import math\nmath.sqrt(-1)\n", TaskError, "raised ValueError: "),
    "bad syntax": ("def task(:\n    pass\n", TaskError, "mine.py:1: invalid syntax"),
    "bad indentation": ("def task():\npass\n", TaskError, "mine.py:2: expected an indented block"),
    "a null byte": ("x = '\0'\n", TaskError, "null bytes"),
}


@pytest.mark.parametrize(("source", "kind", "what"), BAD.values(), ids=BAD)
def test_a_file_that_defines_nothing_to_train_is_refused(write, source, kind, what):
    """With the file in the message or in the fix."""
    with pytest.raises(kind) as caught:
        find_recipe(write(source))
    assert what in caught.value.what
    assert "mine.py" in str(caught.value)


def test_a_file_that_leaves_the_program_is_refused(write):
    """A script without a guard: exit code 0 would say that it was trained."""
    with pytest.raises(TaskError, match=r"left with sys.exit\(0\)") as caught:
        find_recipe(write("import sys\nsys.exit(0)\n"))
    assert "__name__ == '__main__'" in caught.value.fix and "mine.py:2" in caught.value.fix


@pytest.mark.parametrize("parameters", ["a, b", "*, shape", "shape, /, *, rate"])
def test_a_task_that_the_shape_does_not_fill_is_refused(write, parameters):
    """With its parameters, and the two forms that there are."""
    recipe = find_recipe(write(f"def task({parameters}): pass"))
    with pytest.raises(RecipeError, match="cannot be called with the shape of the run") as caught:
        recipe.make_job(recipe.options(), SHAPE)
    assert f"task({parameters})" in caught.value.what and "task(shape)" in caught.value.fix


def test_an_error_of_paceline_in_a_file_stays_itself(write):
    """A RecipeError raised while the file is loaded is not wrapped."""
    with pytest.raises(RecipeError, match="no dataclass"):
        find_recipe(write(RECIPE.replace("build=", "options=3, build=")))


def test_options_must_all_have_defaults():
    """A field without one is named, and so is what is no dataclass."""

    @dataclass(frozen=True)
    class Options:
        size: int

    with pytest.raises(RecipeError, match="option 'size' of recipe 'a' has no default"):
        Recipe(build=lambda options, shape: None, options=Options, name="a")
    with pytest.raises(RecipeError, match="options of recipe 'a' are no dataclass"):
        Recipe(build=lambda options, shape: None, options=int, name="a")


def test_a_build_must_return_a_job():
    """Anything else is named by its type; a job comes through."""
    job = Job(task=task(lambda params, batch: batch), optimizer=optax.sgd(0.1), data=[])
    assert Recipe(build=lambda options, shape: job).make_job(None, SHAPE) is job
    with pytest.raises(RecipeError, match="returned a tuple"):
        Recipe(build=lambda options, shape: (job,)).make_job(None, SHAPE)


def test_a_shape_knows_the_updates_of_a_run():
    """103 rows in batches of 8: 12 an epoch, 36 in 3; steps that were asked for count as they are; never 0."""
    assert SHAPE.num_steps(103) == 36
    assert RunShape(8, 50, 3, 0).num_steps(103) == 50
    assert RunShape(128, None, 3, 0).num_steps(103) == 1
