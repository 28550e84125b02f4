"""A row's bits depend on that row and its own context alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sessile.kernels.cpu.library import CpuLibrary
from sessile.kernels.decoder import reference
from sessile.kernels.embedding import embedding
from sessile.kernels.linear import DenseWeight, linear, pack

from .small_decoder import FORMS, HIDDEN, Run, make_weights, random_weight, same_bits


@pytest.mark.parametrize("form", FORMS)
def test_linear_rows_do_not_depend_on_their_number(level: str, form: str) -> None:
    packed = pack(random_weight(form, 136, 288))
    x, bias, residual = torch.randn(401, 288), torch.randn(136), torch.randn(401, 136)
    whole = linear(x, packed, bias, residual)
    for rows in (1, 2, 3, 7, 8, 9, 12, 13, 16, 64, 200):
        first = 401 - rows
        assert same_bits(linear(x[first:], packed, bias, residual[first:].contiguous()), whole[first:]), rows


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_quantised_weights_give_the_bits_of_their_bfloat16_values(level: str, form: str) -> None:
    weight = random_weight(form, 96, 288)
    kept, dense = pack(weight), pack(DenseWeight(weight.dequantise()))
    ids = torch.arange(96)
    assert same_bits(embedding(ids, kept), weight.dequantise().float())
    assert same_bits(embedding(ids, dense), embedding(ids, kept))
    for rows in (1, 9, 40):
        x = torch.randn(rows, 288)
        assert same_bits(linear(x, kept), linear(x, dense))


@pytest.mark.parametrize("form", FORMS)
def test_chunks(level: str, form: str) -> None:
    dtype = torch.float32 if form == "float32" else torch.bfloat16
    run, x = Run(make_weights(form), dtype), torch.randn(530, HIDDEN)
    whole = run.in_chunks(x, 530)
    for size in (512, 64, 16, 7):
        assert same_bits(run.in_chunks(x, size), whole), size
        for kept, other in zip(run.kv(0), run.kv(len(run.tables) - 1), strict=True):
            assert same_bits(kept, other), size


def test_decode_equals_prefill(level: str) -> None:
    run, x = Run(make_weights("int4")), torch.randn(290, HIDDEN)
    whole = run.in_chunks(x, 290)
    sequence = run.add()
    run.step([(sequence, x[:240])])
    for token in range(240, 290):
        assert same_bits(run.step([(sequence, x[token : token + 1])])[0], whole[token : token + 1]), token
    for kept, other in zip(run.kv(0), run.kv(1), strict=True):
        assert same_bits(kept, other)


def test_alone_equals_in_a_batch_of_nine(level: str) -> None:
    run = Run(make_weights("int4"))
    lengths = (1, 2, 17, 300, 64, 5, 33, 511, 90)
    new = (1, 1, 17, 1, 40, 5, 1, 130, 2)  # decodes, a verify, chunks and whole prompts
    xs = [torch.randn(length, HIDDEN) for length in lengths]
    alone = [run.in_chunks(x, x.shape[0]) for x in xs]
    together = [run.add() for _ in xs]
    for sequence, x, count in zip(together, xs, new, strict=True):
        if x.shape[0] > count:
            run.step([(sequence, x[:-count])])
    found = run.step([(s, x[-count:]) for s, x, count in zip(together, xs, new, strict=True)])
    for i, (hidden, count) in enumerate(zip(found, new, strict=True)):
        assert same_bits(hidden, alone[i][-count:]), i
        for kept, other in zip(run.kv(i), run.kv(together[i]), strict=True):
            assert same_bits(kept, other)


def test_threads(with_threads: Callable[[int], CpuLibrary]) -> None:
    run, x = Run(make_weights("int4")), torch.randn(300, HIDDEN)
    results = []
    for threads in (1, 2, 5):
        with_threads(threads)
        results.append(torch.cat([run.in_chunks(x, 300), run.in_chunks(x[:270], 90)]))
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


@pytest.mark.parametrize("form", ["bfloat16", "int4"])
def test_the_decoder_equals_its_ops_one_by_one(level: str, form: str) -> None:
    weights, x = make_weights(form), torch.randn(70, HIDDEN)
    at_once = Run(weights).in_chunks(x, 40)
    assert same_bits(Run(weights, decode=reference.decoder).in_chunks(x, 40), at_once)
