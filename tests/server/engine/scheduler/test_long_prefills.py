"""vLLM #57413, SGLang #32549: long prefills blocked everyone, one decode batch in 24 seconds."""

from __future__ import annotations

from simulated import a_turn, an_engine

from sessile.server.engine.messages import Priority


def warm_engine(**config):
    engine = an_engine(num_blocks=1 << 14, max_sequences=16, **config)
    for index in range(5):
        engine.submit(a_turn(f"warm-{index}", 100 * (index + 1), max_tokens=20))
        engine.run_until(engine.now + 0.2)
    engine.run()
    return engine


def test_vllm_57413_sglang_32549_streams_go_on_beside_a_long_prefill() -> None:
    engine = warm_engine(max_stall_ms=100)
    for index in range(4):
        engine.submit(a_turn(f"stream-{index}", 200, max_tokens=400))
    engine.run_until(engine.now + 2)
    for record in engine.records.values():
        record.longest_gap = 0.0
    engine.submit(a_turn("long", 24_000, max_tokens=1))
    engine.run()
    assert all(engine.records[f"stream-{index}"].longest_gap <= 0.102 for index in range(4))
    long = engine.records["long"]
    assert long.first_token_s < 1.5 * 24_000 * 0.00112, "and it is not much slower for that"


def test_vllm_57413_sglang_32549_short_prompts_pass_a_long_one() -> None:
    """In order of uncached length: a resumed session with its long prefix cached is short work."""
    engine = warm_engine()
    resumed = list(range(8000))
    engine.submit(a_turn("first", resumed, max_tokens=1))
    engine.run()
    engine.submit(a_turn("long", 24_000, max_tokens=1))
    engine.step()
    engine.step()
    engine.submit(a_turn("short", 100, max_tokens=1))
    engine.submit(a_turn("resumed", [*resumed, 1, 2, 3], max_tokens=1))
    engine.run()
    assert engine.records["short"].first_token_s < 1.5
    assert engine.records["resumed"].first_token_s < 1.5
    assert engine.records["long"].first_token_s > 20


def test_a_long_prompt_of_another_class_is_hurried_by_who_waits_for_it() -> None:
    """A batch turn computes a prefix that an interactive one shares: it inherits the other's urgency."""
    engine = warm_engine(max_batch_tokens=64)
    prefix = list(range(2000))
    engine.submit(a_turn("batch", [*prefix, 1], max_tokens=1, priority=Priority.BATCH))
    engine.step()
    for index in range(40):
        engine.submit(a_turn(f"others-{index}", 500, max_tokens=1, priority=Priority.BACKGROUND))
    engine.submit(a_turn("chat", [*prefix, 2], max_tokens=1))
    engine.run()
    chat = engine.records["chat"]
    assert chat.num_cached >= 1984
    assert chat.first_token < min(engine.records[f"others-{index}"].first_token for index in range(40))
