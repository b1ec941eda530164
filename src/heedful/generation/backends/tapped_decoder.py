"""Decoding with taps: a model whose calls carry a request's edits, the decode step and the texts of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from heedful.generation.search.settings import SearchSettings
from heedful.layers.taps import TapEdits, decode_position, is_observed
from heedful.models.build import GenerativeModel
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.recurrent import RecurrentEncoderDecoder


class TappedDecoder:
    """A `DecoderModel` that applies edits to its own calls only, and passes the decode step and rows to every tap.

    The edits are active during `start` and `extend`, not between them: a paused stream does not affect other calls.
    """

    def __init__(self, model: GenerativeModel, edits: TapEdits | None) -> None:
        self.model, self.edits = model, edits or TapEdits()
        self.config, self.device = model.config, model.device
        self.recomputes = self.edits.recomputes or getattr(model, "recomputes", False)
        """Whether every decode step recomputes all tokens, because later tokens change the states of earlier ones."""

    def start(self, *arguments: Any, capacity: int = 0, texts: Sequence[int] | None = None) -> Any:
        """`texts`: for each row the index of its text in the request."""
        rows = None if texts is None else torch.tensor(list(texts), device=self.device)
        with self._calling(0, rows):
            state = self.model.start(*arguments, capacity=capacity)
        state.texts = rows
        return state

    def extend(self, tokens: Tensor, state: Any, lengths: Tensor | None = None, *, last: bool = False) -> Tensor:
        with self._calling(_tokens_read(state), state.texts):
            logits: Tensor = self.model.extend(tokens, state, lengths, last=last)
        return logits

    def teacher_forced_states(self, *arguments: Any) -> Tensor:
        assert isinstance(self.model, EncoderDecoder | RecurrentEncoderDecoder), "only a translator is teacher-forced"
        with self._calling(0, None):
            return self.model.teacher_forced_states(*arguments)

    def apply_head(self, task: str, states: Tensor) -> Tensor:
        with self._calling(0, None):
            logits: Tensor = self.model.apply_head(task, states)
        return logits

    @contextmanager
    def _calling(self, step: int, rows: Tensor | None) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(decode_position(step, rows))
            stack.enter_context(self.edits.applied(self.model))
            yield


def _tokens_read(state: Any) -> int:
    longest: int | None = getattr(state, "longest", None)
    return int(state.lengths.max()) if longest is None else longest


def requires_modules(model: nn.Module, settings: SearchSettings) -> str | None:
    """Why this request must call the model's own modules (taps, interventions, hooks); None if it need not."""
    if settings.edits is not None:
        return "interventions change values inside the model's own modules"
    if is_observed(model):
        return "a tap is listening inside the model's own modules"
    if has_forward_hooks(model):
        return "a forward hook is registered on one of the model's modules"
    return None


def has_forward_hooks(model: nn.Module) -> bool:
    """Whether PyTorch calls a hook when the model or any of its modules runs."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return True
    return any(module._forward_hooks or module._forward_pre_hooks for module in walk_modules(model))


def walk_modules(model: nn.Module) -> list[nn.Module]:
    """The model and all its submodules: `model.modules()` without its duplicate check, four times as fast."""
    modules = [model]
    for module in modules:
        modules += [child for child in module._modules.values() if child is not None]
    return modules
