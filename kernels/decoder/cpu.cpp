// All layers of a dense decoder in one parallel region, from the other ops' own functions: the same bits as calling
// the ops one by one, without leaving C++ in between.
#include <cstring>

#include "../cpu/ops.h"
#include "../linear/weights.h"

namespace sessile {

struct DecoderLayer {
  PackedWeight qkv, o, gate_up, down;
  const float* input_norm;
  const float* post_norm;
  const float* qkv_bias;  // this and those below may be null
  const float* o_bias;
  const float* q_norm;
  const float* k_norm;
};

struct Decoder {
  const DecoderLayer* layers;
  int64_t num_layers;
  int64_t hidden;  // H
  int64_t inner;   // I
  const float* final_norm;
  const float* cos_sin;
  Heads heads;
  float attention_scale;
  float eps;
  float qk_eps;
};

// Activations of a step, in a buffer that the team keeps: fresh memory for each step would cost its page faults.
struct Activations {
  float* x;         // [T, H] the residual stream
  float* normed;    // [T, H]
  float* qkv;       // [T, (Hq + 2 Hkv) * D]
  float* q;         // [T, Hq * D]
  float* attended;  // [T, Hq * D]
  float* gated;     // [T, I]

  Activations(Team& team, const Decoder& model, int64_t tokens) {
    const Heads& heads = model.heads;
    const int64_t width = int64_t(heads.num_heads) * heads.head_dim;
    const int64_t row = width + 2 * int64_t(heads.num_kv_heads) * heads.head_dim;
    x = team.shared<float>(2, tokens * (2 * model.hidden + row + 2 * width + model.inner));
    normed = x + tokens * model.hidden;
    qkv = normed + tokens * model.hidden;
    q = qkv + tokens * row;
    attended = q + tokens * width;
    gated = attended + tokens * width;
  }
};

namespace {

void run_layer(Worker& worker, const Decoder& model, const DecoderLayer& layer, const Activations& a,
               const Batch& batch, const KvLayer& kv) {
  const int64_t tokens = batch.num_tokens;
  rms_norm(worker, {a.x, nullptr, layer.input_norm, a.normed, nullptr, tokens, model.hidden, model.eps});
  linear(worker, {a.normed, tokens, &layer.qkv, layer.qkv_bias, nullptr, a.qkv});
  rotary_kv_write(worker, {a.qkv, model.cos_sin, layer.q_norm, layer.k_norm, a.q, model.heads, model.qk_eps}, batch, kv);
  paged_attention(worker, {a.q, a.attended, model.heads, model.attention_scale}, batch, kv);
  linear(worker, {a.attended, tokens, &layer.o, layer.o_bias, a.x, a.x});
  rms_norm(worker, {a.x, nullptr, layer.post_norm, a.normed, nullptr, tokens, model.hidden, model.eps});
  linear_silu_mul(worker, {a.normed, tokens, &layer.gate_up, nullptr, nullptr, a.gated});
  linear(worker, {a.gated, tokens, &layer.down, nullptr, a.x, a.x});
}

}  // namespace
}  // namespace sessile

// The embedded tokens `input` [T, H] to normed hidden states `out` [T, H]. `layer_stride`: bytes from one layer's KV to
// the next inside a block.
extern "C" void sessile_decoder(void* team, const sessile::Decoder* model, const float* input, float* out,
                                const sessile::Batch* batch, const sessile::KvLayer* first, int64_t layer_stride) {
  using namespace sessile;
  static_cast<Team*>(team)->run([&](Worker& worker) {
    const int64_t tokens = batch->num_tokens, hidden = model->hidden;
    const Activations a(worker.team, *model, tokens);
    worker.for_units(tokens, [&](int64_t row) {
      std::memcpy(a.x + row * hidden, input + row * hidden, hidden * sizeof(float));
    });
    for (int64_t i = 0; i < model->num_layers; ++i) {
      KvLayer kv = *first;
      kv.keys += i * layer_stride;
      run_layer(worker, *model, model->layers[i], a, *batch, kv);
    }
    rms_norm(worker, {a.x, nullptr, model->final_norm, out, nullptr, tokens, hidden, model->eps});
  });
}
