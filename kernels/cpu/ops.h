// What the ops' files offer to each other: functions that all workers of a team call together.
//
// Each returns when all workers are done with it. All activations are float32, rows contiguous.
#pragma once

#include <cstdint>

#include "team.h"

namespace sessile {

struct PackedWeight;

constexpr int KV_GROUP = 16;  // tokens that lie together inside a block, see kv_layout.py

// Which tokens of a step belong to which sequence; see attention_batch.py.
struct Batch {
  const int32_t* positions;
  const int64_t* slots;
  const int32_t* block_tables;
  const int32_t* query_start;
  const int32_t* context_lens;
  int64_t max_blocks;
  int64_t num_tokens;
  int64_t num_sequences;
};

// One layer of the KV pool; strides in bytes. See kv_layout.py for the order inside a head's part of a block.
struct KvLayer {
  uint8_t* keys;  // of block 0, head 0
  int64_t value_offset;
  int64_t block_stride;
  int64_t head_stride;
  int32_t block_size;
  int32_t is_bfloat16;
};

struct Heads {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};

// out = (x @ weight^T + bias) + residual. bias and residual may be null; out may be residual.
struct Linear {
  const float* x;  // [rows, K]
  int64_t rows;
  const PackedWeight* weight;
  const float* bias;
  const float* residual;
  float* out;  // [rows, N]
};
void linear(Worker&, const Linear&);

// out [rows, N/2] = silu(gate) * up, where [gate; up] = x @ weight^T. N/2 is a multiple of 32.
void linear_silu_mul(Worker&, const Linear&);

// out = norm(x [+ residual]) * weight; total (may be null) receives x + residual.
struct RmsNorm {
  const float* x;
  const float* residual;
  const float* weight;
  float* out;
  float* total;
  int64_t rows;
  int64_t width;
  float eps;
};
void rms_norm(Worker&, const RmsNorm&);
void rms_norm_row(const float* x, const float* weight, int64_t width, float eps, float* out);

void silu_mul(Worker&, const float* gate_up, int64_t rows, int64_t width, float* out);

// q_norm and k_norm may be null.
struct Rotary {
  const float* qkv;
  const float* cos_sin;
  const float* q_norm;
  const float* k_norm;
  float* q_out;  // [T, Hq, D]
  Heads heads;
  float eps;
};
void rotary_kv_write(Worker&, const Rotary&, const Batch&, const KvLayer&);

struct Attention {
  const float* q;  // [T, Hq, D]
  float* out;      // [T, Hq * D]
  Heads heads;
  float scale;
};
void paged_attention(Worker&, const Attention&, const Batch&, const KvLayer&);

}  // namespace sessile
