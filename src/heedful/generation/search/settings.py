"""Search settings: everything about a search that is the same for all texts of one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from heedful.generation.search.logits_rules import NO_RULES, LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.layers.taps import TapEdits

if TYPE_CHECKING:
    from heedful.generation.search.hypotheses import BeamStep

Engine = Literal["auto", "torch", "ctranslate2"]


@dataclass(frozen=True)
class SearchSettings:
    """Search settings of all backends. `Backend.unsupported` reports settings that a backend cannot apply."""

    beam: int = 1
    """Beam size; 1 = greedy search."""
    length_penalty: float = 1.0
    """α in log P / length^α."""
    n_best: int = 1
    """Hypotheses returned per text: the best ones, or samples."""
    sampling: SamplingConfig | None = None
    """Sample the next token instead of searching for the most likely text."""
    rules: LogitsRules = NO_RULES
    max_length: int | None = None
    """Maximum number of tokens to generate. None: twice the source's length plus 20, or 100 after a prompt."""
    exact: bool = False
    """Bitwise identical results whatever the batch: each text is a batch of its own."""
    early_stopping: bool = False
    """Stop a beam search once `beam` hypotheses have ended, as CTranslate2 does."""
    token_log_probabilities: bool = True
    """Return the log-probability of each token; if False, CTranslate2 saves a second pass and returns NaN."""
    engine: Engine = "auto"
    edits: TapEdits | None = None
    """Interventions. Empty (not None): no change, but decoded by the backend that supports interventions."""
    int8: bool = False
    """Use int8 weights in CTranslate2."""
    trace: Callable[[BeamStep], object] | None = None
    """Called by torch's beam search with the candidates of every step."""

    @property
    def rows_per_text(self) -> int:
        """Rows of a batch that one text occupies: its beam, or its samples."""
        return self.beam if self.sampling is None else self.n_best

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return () if self.rules.automaton is None else self.rules.automaton.stop

    @property
    def requires_ctranslate2(self) -> bool:
        return self.int8 or self.engine == "ctranslate2"
