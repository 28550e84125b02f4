// All layers of a dense decoder in one parallel region, from the other ops' own functions: the same bits as calling
// the ops one by one, without leaving C++ in between.
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

// Activations of a step; `x` holds the embedded tokens and becomes the residual stream.
struct Activations {
  float* x;         // [T, H]
  float* normed;    // [T, H]
  float* qkv;       // [T, (Hq + 2 Hkv) * D]
  float* q;         // [T, Hq * D]
  float* attended;  // [T, Hq * D]
  float* gated;     // [T, I]
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

// `layer_stride`: bytes from one layer's KV to the next inside a block. The normed hidden states go to a.normed.
extern "C" void sessile_decoder(void* team, const sessile::Decoder* model, const sessile::Activations* a,
                                const sessile::Batch* batch, const sessile::KvLayer* first, int64_t layer_stride) {
  using namespace sessile;
  static_cast<Team*>(team)->run([&](Worker& worker) {
    for (int64_t i = 0; i < model->num_layers; ++i) {
      KvLayer kv = *first;
      kv.keys += i * layer_stride;
      run_layer(worker, *model, model->layers[i], *a, *batch, kv);
    }
    rms_norm(worker, {a->x, nullptr, model->final_norm, a->normed, nullptr, batch->num_tokens, model->hidden, model->eps});
  });
}
