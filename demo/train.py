"""Trains the demo model on the CPU: python demo/train.py [--steps N] [--out .cache/demo]. Resumes where it stopped.

Loss on the assistant's tokens, and a little on some of the prompt's; bfloat16 for matrix products, float32 for weights;
Muon for the matrices and AdamW for the rest; the rate rises, stays for a third of the steps, and then falls to zero.
One process of one thread for each core takes its share of every batch: threads that wait for each other at every
operation are slower, above all on a busy machine. The same seed and settings give the same batches.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor

from corpus import Batch, Corpus, vocabulary_of
from network import Network, Shape
from optimizer import Muon
from vocabulary import Vocabulary

LONGEST = 1024  # tokens of a conversation
BATCH = 4096  # tokens of a step, in each process
WARM_UP, FALL = 40, 0.68  # steps; share of the steps
MATRIX_RATE, OTHER_RATE = 0.02, 0.004
SAVE_EVERY = 50  # steps


class Training:
    """Network, optimizers, and how far they have come."""

    def __init__(self, shape: Shape, seed: int):
        torch.manual_seed(seed)
        self.net = Network(shape)
        matrices = [weight for name, weight in self.net.named_parameters() if weight.dim() == 2 and "embed" not in name]
        others = [weight for name, weight in self.net.named_parameters() if weight.dim() == 1 or "embed" in name]
        self.optimizers = [
            Muon(matrices, lr=MATRIX_RATE),
            torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.97), weight_decay=0.0, fused=True),
        ]
        self.rates = (MATRIX_RATE, OTHER_RATE)
        self.step, self.seconds, self.cpu_seconds = 0, 0.0, 0.0

    def take_step(self, batch: Batch, n_steps: int) -> float | None:
        """One step; returns the mean loss of the assistant's tokens in nats, if there were any."""
        share = min(1.0, (self.step + 1) / WARM_UP, (n_steps - self.step) / (FALL * n_steps))
        for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * share
        loss, shown = self.loss(batch)
        loss.backward()
        self._share_gradients()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return shown

    def _share_gradients(self) -> None:
        """Replace every gradient by the mean over the processes."""
        if dist.is_initialized():
            gradients = [weight.grad for weight in self.net.parameters() if weight.grad is not None]
            flat = torch.cat([one.flatten() for one in gradients])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for one, shared in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
                one.copy_(shared.view_as(one))

    def loss(self, batch: Batch) -> tuple[Tensor, float | None]:
        """The weighted mean of the cross-entropy, and its mean over the assistant's tokens alone, if any, in nats."""
        weights = torch.from_numpy(batch.weights).flatten()
        wanted = weights.nonzero().squeeze(1)
        weights, targets = weights[wanted], torch.from_numpy(batch.targets).flatten()[wanted]
        logits = self.net(torch.from_numpy(batch.ids), torch.from_numpy(batch.positions), wanted)
        each = F.cross_entropy(logits.float(), targets, reduction="none")
        own = each.detach()[weights == 1]
        return each @ weights / weights.sum(), own.mean().item() if len(own) else None

    def save(self, path: Path) -> None:
        """Write everything that resuming needs; the file is complete or not there."""
        state = {
            "network": self.net.state_dict(), "optimizers": [one.state_dict() for one in self.optimizers],
            "shape": asdict(self.net.s), "step": self.step, "seconds": self.seconds, "cpu_seconds": self.cpu_seconds,
        }  # fmt: skip
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from what `save` wrote."""
        state = torch.load(path, weights_only=True)
        self.net.load_state_dict(state["network"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds, self.cpu_seconds = state["step"], state["seconds"], state["cpu_seconds"]


def corpus_in(out: Path, shape: Shape, n_tokens: int) -> Corpus:
    """The vocabulary and the corpus of this run, made once and kept in `out`."""
    kept = out / f"corpus-{n_tokens}.npz"
    if not (out / "vocabulary.json").exists():
        vocabulary_of(shape.n_vocab).save(out / "vocabulary.json")
    if not kept.exists():
        report("writing conversations")
        made = Corpus.made(Vocabulary.load(out / "vocabulary.json"), n_tokens, LONGEST)
        np.savez(kept, ids=made.ids, learnt=made.learnt, ends=made.ends)
    with np.load(kept) as found:
        return Corpus(found["ids"], found["learnt"], found["ends"])


def report(text: str) -> None:
    """A line of progress; on a terminal it replaces the one before."""
    print(f"\r\033[K{text}" if sys.stdout.isatty() else text, end="" if sys.stdout.isatty() else "\n", flush=True)


def keep_memory() -> None:
    """Tell glibc to reuse large blocks instead of giving them back: fresh pages cost more than the arithmetic here."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for option, value in ((-3, 1 << 30), (-1, (1 << 31) - 1)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(option, value)


def work(rank: int, options: argparse.Namespace) -> None:
    """What each of the processes does; the first one reports and saves."""
    torch.set_num_threads(1)
    keep_memory()
    if options.processes > 1:
        meeting = f"file://{(options.out / 'meeting').absolute()}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=options.processes)
    corpus = corpus_in(options.out, Shape(), int(options.tokens))
    batches = corpus.batches(options.seed, BATCH)
    training = Training(Shape(), options.seed)
    checkpoint = options.out / "checkpoint.pt"
    if checkpoint.exists():
        training.resume(checkpoint)
    elif options.start:
        from carry import carried

        training.net.load_state_dict(carried(options.start, Shape(), Vocabulary.load(options.out / "vocabulary.json")))
    if options.start:
        training.rates = (MATRIX_RATE / 2, OTHER_RATE / 2)  # at the full rates what is known would be shaken loose
    if rank == 0:
        n_weights = sum(weight.numel() for weight in training.net.parameters())
        report(f"{n_weights} weights, {corpus.n_tokens} tokens in {len(corpus.ends)} texts, {options.steps} steps\n")
    mine = itertools.islice(batches, training.step * options.processes + rank, None, options.processes)
    mean = 0.0
    while training.step < options.steps:
        began, cpu_began = time.monotonic(), time.process_time()
        loss = training.take_step(next(mine), options.steps)
        training.seconds += time.monotonic() - began
        training.cpu_seconds += time.process_time() - cpu_began
        if loss is not None:
            mean = loss if mean == 0.0 else 0.95 * mean + 0.05 * loss
        last = training.step == options.steps
        if rank == 0 and (training.step % 20 == 0 or last):
            log(options.out / "log.jsonl", training, mean, options.steps)
        if rank == 0 and (training.step % SAVE_EVERY == 0 or last):
            training.save(checkpoint)


def log(path: Path, training: Training, mean: float, n_steps: int) -> None:
    """Append a line to the log, and show it."""
    spent = {"seconds": round(training.seconds), "cpu_seconds": round(training.cpu_seconds)}
    line = {"step": training.step, "loss": round(mean, 4), **spent}
    with open(path, "a") as out:
        out.write(json.dumps(line) + "\n")
    left = training.seconds / training.step * (n_steps - training.step)
    report(f"step {training.step} of {n_steps}, loss {mean:.3f}, {left / 60:.0f} minutes left")


def main() -> None:
    """Parse the command line, train, and leave checkpoint.pt, vocabulary.json and log.jsonl in --out."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--out", type=Path, default=Path(".cache/demo"))
    parser.add_argument("--tokens", type=float, default=42e6, help="of the corpus, which is read again when it ends")
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--start", type=Path, metavar="OLD.gguf", help="go on from this model, not from random weights")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="of one thread each")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "meeting").unlink(missing_ok=True)
    corpus_in(options.out, Shape(), int(options.tokens))
    torch.multiprocessing.spawn(work, (options,), options.processes)


if __name__ == "__main__":
    main()
