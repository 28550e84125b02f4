// Rows of a packed table.
#include "../cpu/ops.h"
#include "../linear/weights.h"

namespace sessile {
namespace {

// One row (lane `lane` of its block) of K values. Only whole steps of 32 lanes come out of a block, so the rest is
// thrown away: a few hundred rows a step are not worth a second way to read the forms.
template <class Form>
void read_row(const uint8_t* block, int64_t groups, int lane, float* out) {
  for (int64_t g = 0; g < groups; ++g, block += Form::GROUP_BYTES, out += GROUP)
    Form::walk(block, [&](int step, const Vec* values) {
      float word;
      std::memcpy(&word, reinterpret_cast<const float*>(values) + lane, 4);
      if constexpr (Form::Step::WIDTH == 1) {
        out[step] = word;
      } else {
        uint32_t pair;
        std::memcpy(&pair, &word, 4);
        out[step * 2] = from_bfloat16(pair & 0xffff);
        out[step * 2 + 1] = from_bfloat16(pair >> 16);
      }
    });
}

void embedding(Worker& worker, const PackedWeight& table, const int64_t* ids, int64_t count, float* out) {
  with_form(table.form, [&](auto form) {
    using Form = decltype(form);
    const int64_t groups = table.columns / GROUP, stride = groups * Form::GROUP_BYTES;
    worker.for_units(count, [&](int64_t i) {
      const uint8_t* block = table.storage + ids[i] / COLUMNS * stride;
      read_row<Form>(block, groups, int(ids[i] % COLUMNS), out + i * table.columns);
    });
  });
}

}  // namespace
}  // namespace sessile

extern "C" void sessile_embedding(void* team, const sessile::PackedWeight* table, const int64_t* ids, int64_t count,
                                  float* out) {
  static_cast<sessile::Team*>(team)->run(
      [&](sessile::Worker& worker) { sessile::embedding(worker, *table, ids, count, out); });
}
