// Rotary embedding of q and k, and the write of k and v to the KV pool, a token at a time.
#include <algorithm>
#include <cstring>

#include "../cpu/ops.h"
#include "../cpu/vec.h"

namespace sessile {
namespace {

// out = x with its halves' pairs turned by the angles; cos [half], then sin [half].
void rotate(const float* x, const float* cos_sin, int64_t head_dim, float* out) {
  const int64_t half = head_dim / 2;
  const float *cos = cos_sin, *sin = cos_sin + half;
  int64_t i = 0;
  for (; i + LANES <= half; i += LANES) {
    const Vec a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(out + i, fma(a, c, Vec{} - b * s));
    store(out + half + i, fma(b, c, a * s));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    out[i] = a * cos[i] - b * sin[i];
    out[half + i] = b * cos[i] + a * sin[i];
  }
}

// Where a token's group of 16 begins in a head's part of its block, and its place in the group.
struct Slot {
  uint8_t* keys;
  uint8_t* values;
  int64_t token;
};

Slot find_slot(const KvLayer& kv, int64_t slot, int64_t head, int64_t head_dim) {
  const int64_t block = slot / kv.block_size, offset = slot % kv.block_size;
  const int64_t group_bytes = KV_GROUP * head_dim * (kv.is_bfloat16 ? 2 : 4);
  uint8_t* keys = kv.keys + block * kv.block_stride + head * kv.head_stride + offset / KV_GROUP * group_bytes;
  return {keys, keys + kv.value_offset, offset % KV_GROUP};
}

void write_bfloat16(const float* k, const float* v, int64_t head_dim, const Slot& slot) {
  uint32_t* keys = reinterpret_cast<uint32_t*>(slot.keys);  // [head_dim / 2][16] pairs of dimensions
  for (int64_t d = 0; d < head_dim; d += 2)
    keys[d / 2 * KV_GROUP + slot.token] = to_bfloat16(k[d]) | uint32_t(to_bfloat16(k[d + 1])) << 16;
  uint16_t* values = reinterpret_cast<uint16_t*>(slot.values);  // [8][head_dim][2], pairs of tokens
  values += slot.token / 2 * head_dim * 2 + slot.token % 2;
  for (int64_t d = 0; d < head_dim; ++d) values[d * 2] = to_bfloat16(v[d]);
}

void write_float32(const float* k, const float* v, int64_t head_dim, const Slot& slot) {
  float* keys = reinterpret_cast<float*>(slot.keys);  // [head_dim][16]
  for (int64_t d = 0; d < head_dim; ++d) keys[d * KV_GROUP + slot.token] = k[d];
  std::memcpy(reinterpret_cast<float*>(slot.values) + slot.token * head_dim, v, head_dim * sizeof(float));
}

void one_token(const Rotary& op, const Batch& batch, const KvLayer& kv, int64_t token, float* scratch) {
  const Heads& heads = op.heads;
  const int64_t dim = heads.head_dim;
  float *normed = scratch, *rotated = scratch + dim;
  const float* row = op.qkv + token * (heads.num_heads + 2 * heads.num_kv_heads) * dim;
  const float* angles = op.cos_sin + batch.positions[token] * dim;
  const auto turn = [&](const float* x, const float* norm, float* out) {
    if (norm) rms_norm_row(x, norm, dim, op.eps, normed);
    rotate(norm ? normed : x, angles, dim, out);
  };
  for (int64_t h = 0; h < heads.num_heads; ++h)
    turn(row + h * dim, op.q_norm, op.q_out + (token * heads.num_heads + h) * dim);
  const float* keys = row + heads.num_heads * dim;
  const float* values = keys + heads.num_kv_heads * dim;
  for (int64_t h = 0; h < heads.num_kv_heads; ++h) {
    turn(keys + h * dim, op.k_norm, rotated);
    const Slot slot = find_slot(kv, batch.slots[token], h, dim);
    (kv.is_bfloat16 ? write_bfloat16 : write_float32)(rotated, values + h * dim, dim, slot);
  }
}

}  // namespace

void rotary_kv_write(Worker& worker, const Rotary& op, const Batch& batch, const KvLayer& kv) {
  // Neighbouring tokens share cache lines of the pool, so a unit is a run of them.
  const int64_t units = (batch.num_tokens + KV_GROUP - 1) / KV_GROUP;
  worker.for_units(units, [&](int64_t unit) {
    float* scratch = worker.scratch.get<float>(2 * op.heads.head_dim);
    const int64_t end = std::min(batch.num_tokens, (unit + 1) * KV_GROUP);
    for (int64_t token = unit * KV_GROUP; token < end; ++token) one_token(op, batch, kv, token, scratch);
  });
}

}  // namespace sessile

extern "C" void sessile_rotary_kv_write(void* team, const sessile::Rotary* op, const sessile::Batch* batch,
                                        const sessile::KvLayer* kv) {
  static_cast<sessile::Team*>(team)->run(
      [&](sessile::Worker& worker) { sessile::rotary_kv_write(worker, *op, *batch, *kv); });
}
