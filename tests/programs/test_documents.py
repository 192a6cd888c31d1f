"""What a reader of the documentation types, block by block, as it stands there.

A page is read from its top in a folder that looks like a clone (`page_reader`). The same commands in the same folder on
two pages are run once. What needs a network, or addresses, is marked on its page. The README is read by `make long`; of
what it installs, and what needs that, `tests/torch_tasks/test_readme.py` and `make readme` do more.
"""

from __future__ import annotations

import pytest

from tests.programs.page_blocks import Block, blocks_of, comes, status_of
from tests.programs.page_reader import ROOT, Clone, Reader, check_shown, clone_with_this_environment

README = "README.md"
PAGES = (
    "docs/tutorial.md",
    "docs/how-to/read-a-run-folder.md",
    "docs/how-to/train-on-your-own-data.md",
    "docs/how-to/bring-a-flax-or-equinox-model.md",
    "docs/how-to/mixture-of-experts.md",
    "docs/how-to/test-in-virtual-time.md",
    "docs/how-to/install.md",
    "docs/how-to/gpu.md",
    "docs/how-to/it-is-slow.md",
    "docs/how-to/it-does-not-learn.md",
    "docs/how-to/choosing-settings.md",
)
APART = {
    "docs/how-to/bring-your-own-step.md": "parts of an example: tests/programs/test_step_tasks.py",
    "docs/how-to/cluster.md": "several machines: tests/programs/engine/machine, docs/examples/two-machines.sh",
    "docs/how-to/daemon.md": "a port that anybody may have: tests/programs/engine/machine/test_daemon*.py",
    "docs/how-to/islands.md": "devices that are not here: tests/programs/engine/islands, tests/programs/wings/compile",
    "docs/how-to/snapshots-and-resume.md": "a server: tests/programs/engine/run/test_stored.py",
    "docs/how-to/slurm.md": "a cluster: tests/engines/test_slurm.py",
    "docs/how-to/ray.md": "a cluster: tests/engines/test_ray.py",
    "docs/how-to/kubernetes.md": "a cluster: tests/engines/test_kubernetes.py",
    "docs/how-to/watch-a-run.md": "it goes on until Ctrl-C: tests/programs/wings/dashboard",
    "docs/how-to/pytorch.md": "an extra: tests/torch_tasks",
    "docs/how-to/your-own-loop.md": "an extra: tests/torch_tasks",
    "docs/how-to/own-loop-on-several-gpus.md": "an extra: tests/torch_tasks",
    "docs/how-to/own-loop-rules.md": "an extra: tests/torch_tasks",
    "docs/how-to/own-loop-on-a-cluster.md": "several machines: tests/programs/engine/machine/test_cluster_loops.py",
    "docs/how-to/join-with-a-loop.md": "a second machine: tests/torch_tasks/test_joining_loops.py",
    "docs/how-to/model-folders.md": "an extra: tests/torch_tasks/test_model_folders.py",
    "docs/how-to/tune-a-model.md": "an extra: tests/torch_tasks/test_tune_a_model.py",
    "docs/how-to/lm-evaluation-harness.md": "a package of others, in an environment of its own: by hand",
    "docs/how-to/through-a-bucket.md": "a store: tests/programs/engine/machine/test_bucket*.py",
    "docs/how-to/systemd.md": "a service manager: tests/programs/engine/machine/test_service_manager.py",
    "docs/how-to/ports-and-firewalls.md": "addresses: tests/programs/engine/machine/test_cluster_namespaces.py",
    "docs/how-to/site-models.md": "a site: tests/programs/engine/machine/test_site_models_runs.py",
    "docs/how-to/sites.md": "three machines: tests/programs/engine/machine/test_own_data_stays.py runs three-sites.sh",
    "docs/how-to/keys.md": "addresses: tests/programs/engine/machine/test_daemon_keys.py, test_machine_keys.py",
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return clone_with_this_environment(tmp_path_factory.mktemp("page") / "clone")


@pytest.fixture(scope="module")
def first_run(clone: Clone) -> None:
    """The run with which the tutorial begins, which other pages read."""
    first = next(block for block in read("docs/tutorial.md") if block.is_run)
    clone.shell(first.text, clone.folder)


def read(page: str) -> list[Block]:
    return list(blocks_of((ROOT / page).read_text()))


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("first_run")
def test_every_block_of_a_page_does_what_the_page_says(clone: Clone, page: str) -> None:
    go_through(clone, page)


@pytest.mark.long
@pytest.mark.process
def test_every_block_of_the_readme_does_what_it_says(clone: Clone) -> None:
    go_through(clone, README)


def go_through(clone: Clone, page: str) -> None:
    """Do what a page says, and compare what comes with what it shows."""
    reader, output, is_measured, has_run = Reader(clone), "", True, False
    for block in read(page):
        if block.language == "output":
            if has_run and block.is_run:
                said = f"{page}:{block.line} shows\n{block.text}\nand what comes is\n{output}"
                assert comes(block.text, output, is_measured=is_measured), said
        elif block.is_run:
            try:
                output = reader.read(block)
            except Exception as error:
                error.add_note(f"{page}:{block.line}")
                raise
            # What is computed from the graph alone is exact.
            has_run, is_measured = True, "isthmus graph" not in block.text
        else:
            has_run = False


def test_there_is_no_page_of_which_this_knows_nothing() -> None:
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "how-to").glob("*.md")}
    assert pages <= {*PAGES, *APART}


@pytest.mark.parametrize("page", [README, *PAGES, *APART])
def test_the_files_that_a_page_shows_are_those_of_the_examples(page: str) -> None:
    for block in read(page):
        if block.mark.startswith("docs/"):
            check_shown(block, ROOT)


def test_a_block_is_found_with_its_mark_and_run_unless_it_says_why_not() -> None:
    page = "\n".join(
        [
            "text",
            "",
            "    ls a        # exit status 2",
            "",
            "    ls b",
            "",
            "```",
            "out",
            "```",
            "",
            "<!-- not run: it needs a network -->",
            "```python",
            "import x",
            "```",
            "<!-- not run: -->",
            "```bash",
            "make",
            "```",
            "<!-- run by make readme: it installs -->",
            "",
            "    make install",
        ]
    )
    found = list(blocks_of(page))
    assert [(block.line, block.language, block.is_run) for block in found] == [
        (3, "shell", True),
        (8, "output", True),
        (13, "python", False),
        (17, "bash", True),
        (21, "shell", False),
    ]
    assert found[0].text == "ls a        # exit status 2\n\nls b"
    assert [block.exit_status for block in found] == [2, 0, 0, 0, 0]
    assert [block.why_not for block in found] == ["", "", "it needs a network", "", ""]


def test_a_block_is_typed_command_by_command() -> None:
    text = "    cd a\n    # what follows\n    make b \\\n        c   # exit status 1\n\n    ls"
    (block,) = blocks_of(text)
    assert block.commands == ["cd a", "make b \\\n    c   # exit status 1", "ls"]
    assert [status_of(command) for command in block.commands] == [0, 1, 0]


@pytest.mark.parametrize(
    ("expected", "found", "is_measured", "does_come"),
    [
        ("a\n...\nc", "a\nb\nb\nc\n", False, True),
        ("a\n...\nc", "a\nb\nd\n", False, False),
        ("2 nodes", "3 nodes", False, False),
        ("done  1.02 M tokens in 10.1 s", "done 980 k tokens in 850 ms", True, True),
        ("done  1.02 M tokens", "failed  1.02 M tokens", True, False),
        ("loss 2.3e-09 x", "loss 1.906 x", True, True),
        ("a\ntraining, 4 %", "a\ntraining, 10 %, 1 s left\n", True, True),
        ("a\nended, writing, 100 %", "a\nevaluating the final model\nended, writing\nended, writing\n", True, True),
        ("4 learners", "4 learners each", True, False),
    ],
)
def test_an_output_comes_as_it_is_shown(expected: str, found: str, is_measured: bool, does_come: bool) -> None:
    assert comes(expected, found, is_measured=is_measured) == does_come


def test_every_page_has_something_to_run() -> None:
    assert all(any(block.is_run and block.language != "output" for block in read(page)) for page in [README, *PAGES])
