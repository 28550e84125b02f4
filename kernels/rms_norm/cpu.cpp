// RMS norm, a row at a time.
#include "../cpu/ops.h"
#include "../cpu/vec.h"

namespace sessile {
namespace {

float sum_of_squares(const float* x, int64_t width) {
  Vec total{};
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) total = fma(load(x + i), load(x + i), total);
  float sum = sum_lanes(total);
  for (; i < width; ++i) sum += x[i] * x[i];
  return sum;
}

void add_row(const float* x, const float* residual, int64_t width, float* total) {
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) store(total + i, load(x + i) + load(residual + i));
  for (; i < width; ++i) total[i] = x[i] + residual[i];
}

}  // namespace

void rms_norm_row(const float* x, const float* weight, int64_t width, float eps, float* out) {
  const float factor = 1.0f / std::sqrt(sum_of_squares(x, width) / float(width) + eps);
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) store(out + i, load(x + i) * splat(factor) * load(weight + i));
  for (; i < width; ++i) out[i] = x[i] * factor * weight[i];
}

void rms_norm(Worker& worker, const RmsNorm& op) {
  constexpr int64_t ROWS = 4;  // in a unit
  worker.for_units((op.rows + ROWS - 1) / ROWS, [&](int64_t unit) {
    for (int64_t row = unit * ROWS; row < op.rows && row < (unit + 1) * ROWS; ++row) {
      const float* x = op.x + row * op.width;
      if (op.residual) {
        add_row(x, op.residual + row * op.width, op.width, op.total + row * op.width);
        x = op.total + row * op.width;
      }
      rms_norm_row(x, op.weight, op.width, op.eps, op.out + row * op.width);
    }
  });
}

}  // namespace sessile

extern "C" void sessile_rms_norm(void* team, const sessile::RmsNorm* op) {
  static_cast<sessile::Team*>(team)->run([&](sessile::Worker& worker) { sessile::rms_norm(worker, *op); });
}
