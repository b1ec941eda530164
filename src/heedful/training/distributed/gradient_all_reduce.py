"""Gradients added up over processes while the way back is still going on: those of the upper layers come first.

    way back     layer 4   layer 3   layer 2   layer 1
    sent                   4         3         2         1

A compiled or recorded step gives all its gradients at once, at its end: then they are sent one bucket after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heedful.training.checkpoint.sharded_tensors import is_sharded

BUCKET = 1 << 23
"""Numbers summed up at a time: enough to fill a link, few enough to be copied on the side."""
IN_FLIGHT = 4
"""Buckets under way at one time: each is a copy of its gradients."""


class Sent(NamedTuple):
    """A bucket under way."""

    gradients: list[Tensor]
    flat: Tensor
    work: dist.Work


class Summing:
    """Of one model. A bucket is sent when each of its weights has a gradient, always the uppermost first, so that all
    processes send the same; what is still here at the end, as where a weight has no part in the loss, is sent then.

    Sharded weights are left out: theirs are summed already, by those who cut them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        weights = [weight for weight in model.parameters() if weight.requires_grad and not is_sharded(weight)]
        self.buckets = list(buckets(weights))[::-1]
        self.bucket_of = {weight: place for place, bucket in enumerate(self.buckets) for weight in bucket}
        self.awaited = [0] * len(self.buckets)
        """Gradients that buckets still wait for."""
        self.next = len(self.buckets)
        """The bucket to be sent next; the last is past when nobody is to send anything."""
        self.sent: list[Sent] = []
        for weight in weights:
            weight.register_post_accumulate_grad_hook(self._has_gradient)  # type: ignore[no-untyped-call]

    @contextmanager
    def over(self, *, early: bool) -> Iterator[None]:
        """What is summed when this ends are the gradients by then. Early: they come by one way back, within this."""
        if early:
            self._begin()
        yield
        if not early:
            self._begin()
        while self.next < len(self.buckets):
            self._send()
        while self.sent:
            self._receive()

    def _begin(self) -> None:
        self.awaited = [len(bucket) for bucket in self.buckets]
        self.next = 0

    def _has_gradient(self, weight: Tensor) -> None:
        self.awaited[self.bucket_of[weight]] -= 1
        while self.next < len(self.buckets) and not self.awaited[self.next]:
            self._send()

    def _send(self) -> None:
        gradients = [weight.grad for weight in self.buckets[self.next] if weight.grad is not None]
        self.next += 1
        if len(self.sent) == IN_FLIGHT:
            self._receive()
        if gradients:
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            work = dist.all_reduce(flat, async_op=True)
            assert work is not None
            self.sent.append(Sent(gradients, flat, work))

    def _receive(self) -> None:
        gradients, flat, work = self.sent.pop(0)
        work.wait()
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type, about `BUCKET` numbers at a time."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(part.numel() for part in bucket) + tensor.numel() > BUCKET
        if bucket and (full or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
