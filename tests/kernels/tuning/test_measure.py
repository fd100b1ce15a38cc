from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from fastget.kernels import configs
from fastget.kernels.audit.model import CARDS, times
from fastget.kernels.audit.step import StepInputs, launches_of, step
from fastget.kernels.audit.work import work_of
from fastget.kernels.configs import from_dict
from fastget.kernels.launch import Launch, record
from fastget.kernels.tuning import measure as study
from fastget.kernels.tuning.candidates import KERNELS, candidates

CPU = torch.device("cpu")
SHAPE = (256, 345, 2048)


def test_on_a_cpu_the_models_best_is_kept() -> None:
    said: list[str] = []
    found = study.tune([SHAPE], torch.bfloat16, CPU, said.append)
    assert [e.kernel for e in found] == list(KERNELS)
    assert len(said) == 2
    for entry in found:
        seconds = []
        for config in candidates(entry.kernel, *SHAPE, "bf16"):
            with configs.choosing(table={(entry.kernel, *SHAPE, "bf16"): config}):
                launch = next(x for x in launches_of(*SHAPE, torch.bfloat16) if x.name == f"{entry.kernel}_kernel")
            seconds.append(times(work_of(launch), CARDS["H100"]).seconds)
        assert len(seconds) > 4
        assert entry.microseconds <= 1e6 * min(seconds) / study.MARGIN
        assert entry.rule == pytest.approx(1e6 * seconds[0])
        assert from_dict(entry.kernel, entry.config) in candidates(entry.kernel, *SHAPE, "bf16")


@pytest.mark.parametrize("wanted", [0, 3])
def test_the_fastest_that_fits_wins(wanted: int) -> None:
    tried: list[Launch] = []

    def timer(launches: Sequence[Launch]) -> list[float]:
        tried.extend(launches)
        return [1e-6 if i == wanted else 2e-6 for i in range(len(launches))]

    def fits(made: Launch, dtype: torch.dtype) -> bool:
        return made.num_warps == 4

    entry = study.best_of("logits", SHAPE, torch.bfloat16, CPU, timer, fits)
    assert all(made.num_warps == 4 for made in tried[1:]), "what spills is not timed"
    assert entry.config["BLOCK_B"] == tried[wanted].constexprs["BLOCK_B"]
    assert entry.microseconds == pytest.approx(1.0)


def test_a_difference_within_the_noise_leaves_the_rule() -> None:
    def timer(launches: Sequence[Launch]) -> list[float]:
        return [1e-6, *[0.99e-6] * (len(launches) - 1)]

    entry = study.best_of("backward", SHAPE, torch.bfloat16, CPU, timer, lambda made, dtype: True)
    assert from_dict("backward", entry.config) == configs.backward(*SHAPE, "bf16")


def test_a_recorded_launch_runs_again_to_the_same_bits() -> None:
    with record() as launches:
        step(StepInputs.make(9, 5, 20, torch.bfloat16, make=torch.randn))
    made = next(x for x in launches if x.name == "backward_kernel")
    before = [x.clone() for x in made.writes]
    for x in made.writes:
        x.zero_()
    study.run_again(made)
    assert all(torch.equal(x, y) for x, y in zip(made.writes, before, strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_candidate_gives_the_rules_numbers(kernel: str) -> None:
    """Another tile sums in another order: the same to rounding, and the same bits each time."""
    shape = (9, 5, 20)
    results = []
    for config in candidates(kernel, *shape, "bf16")[::3]:
        with configs.choosing(table={(kernel, *shape, "bf16"): config}):
            runs = []
            for _ in range(2):
                torch.manual_seed(0)
                x = StepInputs.make(*shape, torch.bfloat16, make=torch.randn)
                loss = step(x).loss
                assert x.features.grad is not None
                runs.append((loss.detach(), x.features.grad))
            assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True)), config
            results.append(runs[0])
    for loss, grad in results[1:]:
        torch.testing.assert_close(loss, results[0][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(grad, results[0][1], rtol=2e-2, atol=1e-5)


def test_full_float32_has_the_rule_alone() -> None:
    assert candidates("logits", *SHAPE, "ieee") == [configs.logits(*SHAPE, "ieee")]


@pytest.mark.parametrize("values", [{}, {"BLOCK_B": 16}], ids=str)
def test_what_is_no_configuration_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected the fields"):
        from_dict("logits", values)
    with pytest.raises(ValueError, match="expected one of logits, backward"):
        from_dict("other", values)
