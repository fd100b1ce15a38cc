"""Set-up of all tests: what must be in the environment before torch and fastget are imported, and the three rings."""

import atexit
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# What computes, and may so depend on the CPU: files and folders whose tests are marked `numeric`.
NUMERIC = [
    "archive",
    "bases",
    "commands/test_eval.py",
    "commands/test_predict.py",
    "common",
    "evaluation",
    "features",
    "kernels",
    "loading",
    "methods",
    "networks",
    "planning",
    "report",
    "selftest",
    "serving",
    "studies",
    "test_reference.py",
    "training",
]

# Rings: `make test` runs the first, `make test-all` the second too, `make test-slow` the third. Here alone it is said
# which test is where. A line names a folder, a file, a test of either, or its cases with one of some words in brackets.
# What no line names is in the first ring, and fails there if it takes too long. The third is marked `slow` by it.
SECOND = [
    # the documents, and every mistake
    "commands/test_mistakes.py",
    "documents",
    # processes
    "commands/test_light.py",
    "commands/test_main.py::test_module_is_the_command",
    "commands/test_output.py::test_a_full_disk_under_standard_output",
    "commands/test_predict.py::test_a_reader_that_leaves",
    "common/test_lock.py::test_a_killed_process_holds_nothing",
    "common/test_ranks.py",
    "features/test_make.py::test_two_ranks_make_what_one_makes",
    "methods/test_neighbours.py::test_ranks_that_share_the_memory_follow_one",
    "methods/test_systems_ranks.py",
    "runs/test_one_writer.py",
    "studies",
    "test_benchmarks.py::test_rows_run_and_the_interpreter_is_never_timed",
    "training/test_allocator.py::test_the_system_is_asked_once",
    "training/test_kill.py",
    # compiled code, and what is counted of it
    "kernels/audit",
    "kernels/equations",
    "kernels/test_checker.py",
    "kernels/test_wrap.py::test_compiles_into_one_graph",
    "kernels/tuning",
    # a step of the kernels: what stays in the first ring is two odd shapes, by the paper's rule and by the default
    "kernels/test_backward.py::test_drawn_shapes",
    "kernels/test_backward.py::test_each_loss_and_each_input_alone",
    "kernels/test_backward.py::test_matches_reference[(18, 33, 130)",
    "kernels/test_backward.py::test_temperatures_and_norms",
    "kernels/test_expectation.py::test_drawn_shapes",
    "kernels/test_expectation.py::test_matches_reference[(1, 2, 1)",
    "kernels/test_expectation.py::test_matches_reference[(18, 33, 130)",
    "kernels/test_expectation.py::test_matches_reference[partial",
    "kernels/test_expectation.py::test_temperatures_and_norms",
    "kernels/test_memory.py::test_matches_reference[(1, 2, 1)",
    "kernels/test_memory.py::test_matches_reference[(18, 33, 130)",
    "kernels/test_objective.py::test_large_batches",
    "kernels/test_objective.py::test_matches_reference[(1, 2, 1)",
    "kernels/test_objective.py::test_matches_reference[(18, 33, 130)",
    "kernels/test_objective.py::test_temperatures_and_norms",
    "kernels/equations/test_posterior.py::test_five_thousand_classes",
    "kernels/test_backward.py::test_flat_posteriors_without_hard_labels",
    "kernels/test_backward.py::test_large_tiles",
    "kernels/test_expectation.py::test_at_a_small_tau_it_is_no_worse_than_pytorch_on_the_whole",
    "kernels/test_memory.py::test_what_the_next_step_takes_is_the_rules[345",
    "kernels/test_objective.py::test_rebalancing_has_the_priors_powers",
    "kernels::test_addresses_and_order",
    "kernels::test_drawn_shapes",
    "kernels::test_half_types",
    "report/test_page.py::test_the_report_of_a_digits_run_in_a_browser",
    "selftest",
    "training/test_graph.py",
    # damage of every kind
    "fuzz",
    "training/test_bad_images_in_training.py::test_a_file_that_vanishes_does_not_end_the_run",
    "training/test_bad_images_in_training.py::test_bad_files_at_the_start",
    "training/test_bad_images_in_training.py::test_too_many_bad_files_stop_the_run_with_a_checkpoint",
    # numbers that a CPU is slow at
    "features/test_training.py::test_the_losses_of_a_frozen_backbone",
    "methods/test_own_method.py",
    "training/test_engine.py::test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used",
    "training/test_engine.py::test_a_memory_in_float16_is_written_and_read_without_a_wait",
    "training/test_engine.py::test_compile_follows_eager",
    "training/test_engine.py::test_float16_and_bfloat16_follow_float32",
    "training/test_engine.py::test_float16_overflow_skips_the_step_and_the_memory",
    "training/test_engine.py::test_optimizer_implementations_give_the_same_trajectory",
    "training/test_engine.py::test_profile",
    "training/test_engine.py::test_tensorboard_events",
    "report/test_plots.py::test_every_figure_of_a_digits_run",
    # runs, beside a tiny one of each method and each base
    "bases/test_mixmatch.py::test_with_a_method_inside_it_is_not_mixmatch_alone",
    "commands/test_data.py::test_digits_need_no_root",
    "data/test_digits.py::test_made_at_a_root_of_ones_own_and_never_over_something_else",
    "training/test_train.py::test_a_finished_run_of_other_settings_is_not_taken_for_this_one",
    "training/test_train.py::test_linear_ramp_starts_at_nothing",
    "training/test_watch.py::test_a_resumed_run_has_each_line_once",
    "training/test_train.py::test_a_runs_own_config_repeats_it_to_the_bit",
    "training/test_train.py::test_resume_goes_on_to_the_same_end",
    "training/test_train.py::test_several_seeds",
    "training/test_train.py::test_the_kernels_train_like_the_reference",
    "training/test_methods.py::test_a_run_that_was_cut_off_ends_the_same[pda|imbalanced|cdan-ssda|mixmatch-ssda",
    "training/test_methods.py::test_a_run_that_was_cut_off_ends_the_same[get-cdan|minent-cdan|bnm-cdan|mcc-cdan|pl-cdan|power-cdan",
    "training/test_methods.py::test_a_run_that_was_cut_off_ends_the_same[shot-plain",
    "training/test_methods.py::test_a_run_that_was_cut_off_ends_the_same[dann-cdan|safn-cdan|daln-cdan|scda-cdan",
    "training/test_methods.py::test_a_run_that_was_cut_off_ends_the_same[nc-cdan|na-cdan|pl-mixm|nc-mixm|na-mixm|get-mixm",
]
THIRD = [
    "commands/test_features.py::test_killed_at_random_moments_it_goes_on",
    "common/test_ranks.py::test_two_ranks_follow_one_by_every_method_on_every_base",
    "data/test_lists.py::test_600_000_entries_stay_under_300_mb",
    "documents/test_blocks.py::test_all_of_a_page_runs",
    "fuzz/test_caches.py::test_the_index_of_packed_images[7000",
    "fuzz/test_caches.py::test_what_checks_remember[15000",
    "fuzz/test_checkpoints.py::test_mutations[20000",
    "fuzz/test_configurations.py::test_mutations[25000",
    "fuzz/test_images.py::test_images[5000",
    "fuzz/test_kill_points.py::test_it_goes_on_from_every_one[6",
    "fuzz/test_lists.py::test_lists[50000",
    "fuzz/test_weights.py::test_mutations[10000",
    "kernels/audit/test_compile.py::test_every_configuration_keeps_its_claims",
    "kernels/audit/test_report.py::test_it_speaks_before_it_has_compiled_them_all",
    "kernels/test_backward.py::test_flat_posteriors_without_hard_labels[0.05",
    "kernels/test_expectation.py::test_at_a_small_tau_it_is_no_worse_than_pytorch_on_the_whole[33|256",
    "methods/test_adapts.py::test_it_gains",
    "methods/test_own_method.py::test_two_ranks_follow_one",
    "report/test_figures.py::test_groups_of_features_stay_together[umap",  # which compiles for half a minute
    "report/test_figures.py::test_the_figure_is_the_papers",
    "studies/reproduce/test_every_table.py::test_the_whole_of_every_table",
    "studies/reproduce/test_reproduce.py::test_a_killed_process_goes_on",
    "test_bench_step.py::test_collectives_are_counted_on_two_ranks",
    "test_golden.py",
    "training/test_kill.py::test_killed_and_resumed[torchvision",
    "training/test_kill.py::test_killed_twenty_times",
    "training/test_methods.py::test_a_run_that_was_cut_off_ends_the_same[cdan-pda|cdan-imb|mixmatch-pda|mixmatch-imb",
]
LIMIT = 3.0  # CPU-seconds that a test of the first ring may take, with those of the processes that it waits for
FIXED_WORK = 0.032  # CPU-seconds of fixed_work() on the machine that the limit was set on
UNLIMITED = "FASTGET_TESTS_UNLIMITED"  # set: no test fails for its time

for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR"):  # a width and colours of one's own would cut the words up
    os.environ.pop(name, None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job: Ctrl-C is tested all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # workers share the cores, or their threads wait for one another
    share = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ.setdefault("OMP_NUM_THREADS", str(share))
os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: its kernels run on CPU tensors
os.environ["XDG_CACHE_HOME"] = cache = tempfile.mkdtemp(prefix="fastget-tests-")  # the digits are made here, once
atexit.register(shutil.rmtree, cache, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rings", default="", help="only the tests of these rings: 1, 12, 2, 3; default: all that are named"
    )


def ring_of(item: pytest.Item) -> int:
    return next((ring for ring, table in ((3, THIRD), (2, SECOND)) if any(is_named(item, line) for line in table)), 1)


def is_named(item: pytest.Item, line: str) -> bool:
    """Whether a line of a table names a test."""
    place, _, word = line.partition("[")
    where, _, test = place.partition("::")
    name, _, case = item.nodeid.removeprefix("tests/").partition("[")
    file, _, function = name.partition("::")
    return (
        f"{file}/".startswith(f"{where}/") and test in ("", function) and any(each in case for each in word.split("|"))
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(HERE / place) for place in NUMERIC):
            item.add_marker(pytest.mark.numeric)
        if ring_of(item) == 3:
            item.add_marker(pytest.mark.slow)
    if rings := config.getoption("rings"):
        chosen = [item for item in items if str(ring_of(item)) in rings and not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def fixed_work() -> float:
    """CPU-seconds of the same work everywhere, in one thread: a slower machine has more time for a test."""
    import torch

    threads, x = torch.get_num_threads(), torch.full((64, 64), 0.01)
    torch.set_num_threads(1)
    before = time.process_time()
    for _ in range(2000):
        x = torch.tanh(x @ x)
    torch.set_num_threads(threads)
    return time.process_time() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test of the first ring that takes too long fails by its name. It is the CPU's time: what runs beside is no part
    of it."""
    before = sum(os.times()[:4])
    yield
    took = sum(os.times()[:4]) - before
    limited = item.config.getoption("rings") == "1" and UNLIMITED not in os.environ
    if limited and took > LIMIT and took > LIMIT * min(fixed_work() for _ in range(3)) / FIXED_WORK:
        pytest.fail(
            f"{item.nodeid} takes {took:.1f} CPU-seconds, and a test of the first ring {LIMIT:g} at most: make it "
            f"faster, or name it in SECOND of tests/conftest.py ({UNLIMITED}=1 lets it pass)",
            pytrace=False,
        )


@pytest.fixture(scope="session", autouse=True)
def warm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the first test of a session would pay for all that come after it: imports, the digits, a first step."""
    if "1" in request.config.getoption("rings"):
        for name in ("matplotlib.pyplot", "sklearn.manifold", "torch.utils.tensorboard", "torch._dynamo", "timm"):
            import_module(name)
        from fastget.training.train import train
        from tests.support import tiny

        out = tmp_path_factory.mktemp("warm") / "run"
        train(tiny(out, train__max_steps=2, train__warmup_steps=1, train__tensorboard=True), quiet=True)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are written under the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run on `digits` whose network tells most of them apart. Not to be written to."""
    import fastget

    settings: dict[str, Any] = {"train.max_steps": 70, "train.warmup_steps": 60, "optim.lr": 0.05}
    settings |= {"train.eval_every": 70, "train.checkpoint_every": 35, "train.tensorboard": False}
    folder = tmp_path_factory.mktemp("digits") / "run"
    return fastget.train(fastget.make_config({**settings, "train.out": str(folder)}), quiet=True).folder


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored features of three dozen images a domain, which train in no time. Not to be written to."""
    from tests.commandline import features

    return features(tmp_path_factory.mktemp("features") / "few")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, `data`, and a run on them, `run`. Not to be written to."""
    from tests.commandline import FEW, on_folders, say
    from tests.pictures import write_domains

    folder = tmp_path_factory.mktemp("images")
    done = say(*on_folders(write_domains(folder / "data", per_class=4), *FEW, out=str(folder / "run")))
    assert done.code == 0, done.words
    return folder
