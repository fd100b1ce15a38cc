"""What once passed in silence, asked of an older revision: does each test fail there, and for its reason?

    python -m tests.before REV        # exit code 1 unless every point fails on REV by an assertion

The revision is checked out in a folder of its own, with this tree's tests in place of its own. So the tests below use
commands, files and torch, nothing that is new: one that fails by an import or an unknown name shows nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parents[1]
# The points of the list of silent places -> the tests of each: tests/silent/test_NAME.py::test_... as NAME::...,
# and others by their path. A test's parameters all belong to it.
POINTS: dict[int, tuple[str, ...]] = {
    1: (
        "waiting::a_log_tells_of_an_evaluation_that_takes_long",
        "waiting::an_evaluation_takes_no_batch_far_beyond_training_s",
    ),
    2: (
        "waiting::a_signal_is_heeded_between_batches",
        "waiting::a_signal_is_answered_at_once",
        "tests/data/test_in_words.py::test_a_check_that_is_stopped_says_what_it_remembers",
    ),
    3: ("folders::a_second_process_in_the_folder_of_a_run_is_refused",),
    4: ("messages::what_is_no_file_of_weights",),
    5: (
        "tests/data/test_in_words.py::test_what_lies_in_a_folder_is_used_or_told_of",
        "tests/data/test_in_words.py::test_what_is_likely_not_meant_gets_a_remark",
    ),
    6: ("folders::a_run_on_a_relative_root_is_evaluated_from_another_folder",),
    7: (
        "words::the_readme_s_loop_can_be_copied",
        "words::the_readme_says_early_what_has_not_run_on_a_gpu_and_for_whom_it_is",
    ),
    8: (
        "tests/commands/test_main.py::test_help_fits_the_terminal[train-80]",
        "tests/commands/test_main.py::test_help_fits_the_terminal[doctor-80]",
        "tests/commands/test_main.py::test_help_of_one_section",
        "tests/commands/test_main.py::test_the_version",
        "tests/commands/test_main.py::test_a_misspelt_option_gets_a_suggestion",
    ),
    9: (
        "words::an_office_31_tree_under_another_name_gets_a_hint",
        "words::the_message_about_onnx_names_the_extra",
        "words::the_bar_moves_with_every_step",
        "words::the_report_of_the_kernels_speaks_before_it_has_compiled_them_all",
        "tests/commands/test_data.py::test_show_says_what_it_leaves_out",
        "tests/studies/test_demo.py::test_demo",
    ),
    10: ("words::a_first_run_for_a_laptop",),
    11: ("words::there_are_notes_on_installing",),
    12: ("folders::two_runs_that_start_together_have_a_folder_each",),
    13: ("saved::a_signal_on_a_full_disk", "saved::what_is_on_disk_where_the_first_images_are_bad"),
    14: ("saved::one_bit_makes_no_other_network",),
    15: ("tests/data/test_in_words.py::test_an_image_that_an_evaluation_cannot_read_is_named",),
    16: ("tests/data/test_in_words.py::test_a_target_s_file_name_that_is_no_text",),
    17: ("saved::new_checkpoints_stay_where_later_ones_are_damaged",),
    18: ("folders::a_run_does_not_go_on_with_other_data",),
    19: ("tests/data/test_in_words.py::test_ssda_does_not_score_its_own_shots",),
    20: ("tests/data/test_in_words.py::test_a_bomb_is_refused_by_its_header",),
    21: (
        "messages::weights_that_are_no_plain_numbers",
        "messages::settings_that_are_nested_without_end",
        "messages::a_width_that_no_memory_holds",
        "messages::a_crop_that_a_network_cannot_take",
        "messages::lists_of_unlike_classes_are_shown",
        "messages::what_checks_remember_is_made_anew",
        "messages::a_disk_that_fills_while_images_are_packed",
        "messages::an_image_on_which_pil_raises_what_it_should_not",
        "tests/common/test_output.py::test_a_full_disk_under_standard_output",
        "tests/commands/test_data.py::test_a_damaged_packed_index_is_made_anew_with_a_word",
    ),
    22: ("folders::a_rank_that_sees_another_folder_is_named",),
    23: (
        "tests/data/test_in_words.py::test_two_classes_of_one_name_stay_two",
        "tests/data/test_in_words.py::test_nobody_waits_for_a_pipe",
        "tests/data/test_in_words.py::test_no_more_open_files_is_no_fault_of_the_images",
        "tests/data/test_in_words.py::test_a_check_reads_everything_again_where_it_is_told_to",
        "tests/commands/test_data.py::test_names_are_shown_and_not_obeyed",
    ),
    24: ("tests/fuzz/test_caches.py::test_the_index_of_packed_images",),
}


@dataclass(frozen=True)
class Outcome:
    """What came of a test, with its parameters: passed, failed (by an assertion), or error (anything else)."""

    test: str
    kind: str
    reason: str


def node(name: str) -> str:
    """A test as pytest is asked for it."""
    file, _, test = name.partition("::")
    return name if "/" in file else f"tests/silent/test_{file}.py::test_{test}"


def outcomes(report: Path) -> list[Outcome]:
    """Of pytest's XML file."""
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        test = f"{str(case.get('classname')).replace('.', '/')}.py::{case.get('name')}"
        message, kind = "", "passed"
        for tag in ("failure", "error", "skipped"):
            if (part := case.find(tag)) is not None:
                message, kind = str(part.get("message")), tag
        if kind == "failure":
            kind = "failed" if message.startswith(("AssertionError", "assert ")) else "error"
        first = next(iter(message.splitlines()), "").removeprefix("AssertionError: ")
        found.append(Outcome(test, kind, first))
    return found


def of(name: str, found: list[Outcome]) -> list[Outcome]:
    """The outcomes of a test, one for each of its parameters."""
    return [one for one in found if one.test == node(name) or one.test.startswith(f"{node(name)}[")]


def table(found: list[Outcome]) -> tuple[list[str], list[int]]:
    """Rows of Markdown, and the points of which not every test failed by an assertion."""
    rows = ["| point | test | outcome | reason |", "| --- | --- | --- | --- |"]
    unproven = []
    for point, names in POINTS.items():
        for name in names:
            every = of(name, found) or [Outcome(node(name), "error", "it was not found")]
            for one in every:
                short = one.test.removeprefix("tests/").replace("|", "\\|")
                rows.append(f"| {point} | {short} | {one.kind} | {one.reason.replace('|', '/')[:160]} |")
            if any(one.kind != "failed" for one in every):
                unproven.append(point)
    return rows, sorted(set(unproven))


def run(tree: Path, report: Path) -> list[Outcome]:
    """All tests above, on the package in `tree`."""
    tests = [node(name) for names in POINTS.values() for name in names]
    own = ["-q", "-p", "no:cacheprovider", "--tb=no", f"--junitxml={report}", "-o", "junit_family=xunit1"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "pytest", *own, "--continue-on-collection-errors", *tests]
    subprocess.run(command, cwd=tree, env=environment, stdout=sys.stderr, check=False)
    return outcomes(report)


def main(revision: str) -> int:
    """The table of a revision; 0 if all points fail there."""
    git = ["git", "-C", str(HERE), "worktree"]
    with tempfile.TemporaryDirectory(prefix="before-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            shutil.rmtree(tree / "tests", ignore_errors=True)
            shutil.copytree(HERE / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(HERE / "pyproject.toml", tree)
            rows, unproven = table(run(tree, Path(folder) / "report.xml"))
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    print("\n".join(rows))
    shown = len(POINTS) - len(unproven)
    print(f"\n{shown} of {len(POINTS)} points fail on {revision} by their assertions" + _not(unproven))
    return 1 if unproven else 0


def _not(points: list[int]) -> str:
    return f"; not so: {', '.join(map(str, points))}" if points else ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.before REV")
    sys.exit(main(sys.argv[1]))
