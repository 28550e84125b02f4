// silu(gate) * up, a row at a time.
#include "../cpu/ops.h"
#include "../cpu/vec.h"

namespace sessile {

void silu_mul(Worker& worker, const float* gate_up, int64_t rows, int64_t width, float* out) {
  worker.for_units(rows, [&](int64_t row) {
    const float* gate = gate_up + row * 2 * width;
    const float* up = gate + width;
    float* to = out + row * width;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) store(to + i, silu(load(gate + i)) * load(up + i));
    for (; i < width; ++i) to[i] = silu(splat(gate[i]))[0] * up[i];
  });
}

}  // namespace sessile

extern "C" void sessile_silu_mul(void* team, const float* gate_up, int64_t rows, int64_t width, float* out) {
  static_cast<sessile::Team*>(team)->run(
      [&](sessile::Worker& worker) { sessile::silu_mul(worker, gate_up, rows, width, out); });
}
