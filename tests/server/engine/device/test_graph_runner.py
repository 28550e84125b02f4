"""The GPU's runner on a GPU that is not there. What this cannot show is said in the output of the last test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_device import FakeDevice
from summing_model import SummingModel, next_token

from sessile.server.engine.batch import StepArrays
from sessile.server.engine.device.buckets import Bucket, Buckets
from sessile.server.engine.device.graph_runner import GraphRunner
from sessile.server.engine.device.step_buffers import Sizes
from sessile.server.engine.kv_cache import KVCache

SIZES = Sizes(rows=24, sequences=6, blocks=4)


class Rig:
    """A runner with sequences of known tokens: sequence i has the blocks from 4 * i on."""

    def __init__(self) -> None:
        self.model, self.device = SummingModel(), FakeDevice()
        self.kv_cache = KVCache(self.model.kv_layout(16), 24, self.device.torch_device)
        self.runner = GraphRunner(self.model, self.kv_cache, self.device, SIZES)
        self.stages: list[tuple[str, float]] = []
        self.runner.capture(lambda stage, fraction: self.stages.append((stage, fraction)))
        self.kv_cache.pool.fill_(1e6)
        self.device.log.clear()
        self.model.rows.clear()

    def arrays(self, contexts: list[list[int]], news: list[int]) -> StepArrays:
        """The last ``news[i]`` tokens of ``contexts[i]`` are computed. Logits of each one's last row are wanted, or of
        all where they are no more than a bucket's."""
        counts = np.array(news, dtype=np.int32)
        lens = np.array([len(tokens) for tokens in contexts], dtype=np.int32)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        positions = np.concatenate([np.arange(n - c, n) for n, c in zip(lens, counts, strict=True)]).astype(np.int32)
        owner = np.repeat(np.arange(len(contexts)), counts)
        return StepArrays(
            token_ids=np.array([t for tokens, n in zip(contexts, news, strict=True) for t in tokens[-n:]]),
            positions=positions,
            slot_mapping=(owner * 64 + positions).astype(np.int64),
            block_tables=np.array([[4 * i + b for b in range(4)] for i in range(len(contexts))], dtype=np.int32),
            query_start=starts,
            context_lens=lens,
            logits_rows=np.arange(starts[-1]) if max(news) <= 8 else starts[1:].astype(np.int64) - 1,
            rows=[],
        )

    def prefill(self, contexts: list[list[int]]) -> None:
        self.runner.run(self.arrays(contexts, [len(tokens) for tokens in contexts]))
        self.device.log.clear()


@pytest.fixture
def rig() -> Rig:
    return Rig()


CONTEXTS = [[3, 1, 4], [1, 5, 9, 2, 6] * 5, [7]]


def test_buckets_cover_every_step_and_no_more_rows_than_allowed() -> None:
    buckets = Buckets(max_sequences=20, max_rows=64)
    assert buckets.sequences == (1, 2, 4, 8, 12, 16, 20)
    everything = set(buckets.all())
    for sequences in range(1, 21):
        for longest in range(1, 9):
            found = buckets.find(sequences, longest)
            if found is not None:
                assert found in everything
                assert found.num_sequences >= sequences and found.rows_each >= longest and found.num_rows <= 64
    assert buckets.find(5, 1) == Bucket(8, 1)
    assert buckets.find(3, 3) == Bucket(4, 4)
    assert buckets.find(20, 8) is None and buckets.find(1, 9) is None and buckets.find(21, 1) is None


def test_capture_writes_no_block_and_tells_progress() -> None:
    model, device = SummingModel(), FakeDevice()
    kv_cache = KVCache(model.kv_layout(16), 24, device.torch_device)
    runner = GraphRunner(model, kv_cache, device, SIZES)
    heard: list[float] = []
    runner.capture(lambda stage, fraction: heard.append(fraction))
    assert not kv_cache.pool.any(), "a warm-up wrote to a block"
    assert device.log.count("capture") == len(heard) == len(list(Buckets(6, 24).all()))
    assert heard[-1] == 1.0 and heard == sorted(heard)


def test_a_decode_replays_the_next_larger_graph(rig: Rig) -> None:
    rig.prefill(CONTEXTS)
    longer = [[*tokens, next_token(tokens)] for tokens in CONTEXTS]
    arrays = rig.arrays(longer, [1, 1, 1])
    found = rig.runner.collect(rig.runner.launch(arrays))
    assert found == [next_token(tokens) for tokens in longer]
    assert rig.model.rows[-1] == 4, "three sequences run in the bucket of four"
    assert "replay" in rig.device.log
    uploads = [entry for entry in rig.device.log if entry.startswith("copy")]
    assert len(uploads) == 2, "one copy brings all inputs, one takes the tokens"


def test_drafts_replay_a_graph_of_ragged_rows(rig: Rig) -> None:
    rig.prefill([tokens[:-1] or tokens for tokens in CONTEXTS])
    drafted = [[*CONTEXTS[0], 8, 16, 32], [*CONTEXTS[1], 9]]
    ticket = rig.runner.launch(rig.arrays(drafted, [4, 2]))
    wanted = [next_token(drafted[0][:n]) for n in (3, 4, 5, 6)] + [next_token(drafted[1][:n]) for n in (25, 26)]
    assert rig.runner.collect(ticket) == wanted
    assert rig.model.rows[-1] == 8


def test_prompts_run_without_a_graph(rig: Rig) -> None:
    logits = rig.runner.run(rig.arrays(CONTEXTS, [3, 25, 1]))
    assert logits.argmax(-1).tolist() == [next_token(tokens) for tokens in CONTEXTS]
    assert "replay" not in rig.device.log


def test_the_next_step_is_launched_before_the_tokens_of_this_one_are_known(rig: Rig) -> None:
    rig.prefill(CONTEXTS)
    known = [[*tokens, next_token(tokens)] for tokens in CONTEXTS]
    rig.device.log.clear()
    first = rig.runner.launch(rig.arrays(known, [1, 1, 1]))
    unknown = [[*tokens, 0] for tokens in known]
    order = [2, 0, 1]  # sequences may be in another order
    arrays = rig.arrays(unknown, [1, 1, 1])
    shuffled = StepArrays(
        token_ids=arrays.token_ids[order],
        positions=arrays.positions[order],
        slot_mapping=arrays.slot_mapping[order],
        block_tables=arrays.block_tables[order],
        query_start=arrays.query_start,
        context_lens=arrays.context_lens[order],
        logits_rows=arrays.logits_rows,
        rows=[],
    )
    second = rig.runner.launch(shuffled, previous=np.array(order))
    assert rig.device.log.count("replay") == 2
    tokens = rig.runner.collect(first)
    after = [[*t, token] for t, token in zip(known, tokens, strict=True)]
    assert rig.runner.collect(second) == [next_token(after[i]) for i in order]


def test_a_pinned_slot_is_written_again_only_when_its_copy_is_done(rig: Rig) -> None:
    rig.prefill(CONTEXTS)
    for _ in range(3):
        rig.runner.launch(rig.arrays(CONTEXTS, [1, 1, 1]))
    assert rig.device.log.count("wait") >= 1


def test_prompts_must_know_their_tokens(rig: Rig) -> None:
    with pytest.raises(ValueError, match="must know its tokens"):
        rig.runner.launch(rig.arrays(CONTEXTS, [3, 25, 1]), previous=np.full(29, -1))


def test_what_was_not_run_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here: `python -m sessile.server.doctor.cuda` runs the real graphs, streams and kernels")
    with capsys.disabled():
        print(
            "\nnot run here, since there is no GPU: CUDA graphs, CUDA streams and events, pinned copies, compiled "
            "kernels and their speed (run .ci/check-gpu on a machine with one)"
        )
