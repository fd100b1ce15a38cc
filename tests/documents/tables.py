"""Tables of docs/ that are made of the code:

python -m tests.documents.tables        # writes them into their pages; test_tables.py keeps them in step
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from typing import Any

from fastget.data.datasets import DATA_SETS
from fastget.methods.settings import Get
from tests.documents.blocks import ROOT

MEANINGS = {"tau": "temperature of the posteriors", "gamma_mu": "the prototypes' step", "gamma_Q": "the weight of y_M",
            "gamma_pi": "the prior's step", "prior_start": "where the prior starts",
            "prior_estimate": "the batch's shares of the classes", "prior": "how a step uses the prior",
            "prototype_labels": "which class moves"}  # fmt: skip


def data_sets() -> str:
    """What each data set is, and how it lies on disk."""
    rows = ["| `--data` | what | classes | images by domain | under `--root` |", "| --- | --- | ---: | --- | --- |"]
    for known in DATA_SETS.values():
        images = ", ".join(f"{name} {count:,}" for name, count in known.domains.items())
        rows.append(f"| `{known.name}` | {known.title} | {known.num_classes} | {images} | `{known.tree[0]}` ... |")
    return "\n".join(rows)


def shown(value: Any) -> str:
    """As one gives it to --set."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def values() -> str:
    """GeT's values: the paper's beside the default."""
    rows = ["| field | | paper | fastget |", "| --- | --- | --- | --- |"]
    paper = Get.presets["paper"]
    for field in fields(Get):
        if field.name in paper:
            both = f"{shown(paper[field.name])} | {shown(field.default)}"
            rows.append(f"| `get.{field.name}` | {MEANINGS[field.name]} | {both} |")
    return "\n".join(rows)


TABLES = {"docs/data.md": ("data sets", data_sets), "docs/differs.md": ("values", values)}


def renewed(page: str) -> str:
    """A page's text with its table as the code has it now."""
    name, make = TABLES[page]
    begin, end = f"<!-- {name}: made by python -m tests.documents.tables -->", f"<!-- {name} end -->"
    text = (ROOT / page).read_text(encoding="utf-8")
    new, count = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n\n{make()}\n\n{end}", text,
                         flags=re.DOTALL)  # fmt: skip
    assert count == 1, f"{page} needs {begin} and {end}"
    return new


def main() -> int:
    for page in TABLES:
        (ROOT / page).write_text(renewed(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
