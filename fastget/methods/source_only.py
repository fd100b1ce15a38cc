"""Source-only: the baseline that never sees the target."""

from __future__ import annotations

from typing import ClassVar

from fastget.methods import settings
from fastget.methods.base import Method, Need, Seen, Term


class SourceOnly(Method):
    """No term: it asks for no batches of the target, so that `forward` adds nothing even if it is called."""

    Config = settings.SourceOnlySettings
    config: settings.SourceOnlySettings
    capturable = True
    needs: ClassVar[frozenset[Need]] = frozenset()

    def forward(self, seen: Seen) -> Term:
        return Term(seen.logits.new_zeros(()))
