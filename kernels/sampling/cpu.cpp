// Argmax and top-k over rows of logits; of equal values the smaller index comes first.
#include <algorithm>

#include "../cpu/ops.h"
#include "../cpu/vec.h"

namespace sessile {
namespace {

float largest(const float* row, int64_t width) {
  Vec best = splat(-INFINITY);
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) best = max(load(row + i), best);
  float result = max_lanes(best);
  for (; i < width; ++i) result = std::max(result, row[i]);
  return result;
}

int64_t first_equal(const float* row, int64_t width, float value) {
  for (int64_t i = 0; i < width; ++i)
    if (row[i] == value) return i;
  return 0;
}

struct Candidate {
  float value;
  int64_t id;
  bool operator<(const Candidate& other) const {  // "comes before"
    return value != other.value ? value > other.value : id < other.id;
  }
};

// The k best so far are a heap whose top is the worst of them; few values ever get past it.
void best_of_row(const float* row, int64_t width, int64_t k, float* values, int64_t* ids, Candidate* heap) {
  for (int64_t i = 0; i < k; ++i) heap[i] = {row[i], i};
  std::make_heap(heap, heap + k);
  for (int64_t i = k; i < width; ++i) {
    if (!(row[i] > heap[0].value)) continue;
    std::pop_heap(heap, heap + k);
    heap[k - 1] = {row[i], i};
    std::push_heap(heap, heap + k);
  }
  std::sort_heap(heap, heap + k);
  for (int64_t i = 0; i < k; ++i) {
    values[i] = heap[i].value;
    ids[i] = heap[i].id;
  }
}

}  // namespace
}  // namespace sessile

extern "C" void sessile_argmax(void* team, const float* logits, int64_t rows, int64_t width, int64_t* out) {
  using namespace sessile;
  static_cast<Team*>(team)->run([&](Worker& worker) {
    worker.for_units(rows, [&](int64_t row) {
      const float* values = logits + row * width;
      out[row] = first_equal(values, width, largest(values, width));
    });
  });
}

extern "C" void sessile_top_k(void* team, const float* logits, int64_t rows, int64_t width, int64_t k, float* values,
                              int64_t* ids) {
  using namespace sessile;
  static_cast<Team*>(team)->run([&](Worker& worker) {
    worker.for_units(rows, [&](int64_t row) {
      Candidate* heap = worker.scratch.get<Candidate>(k);
      best_of_row(logits + row * width, width, k, values + row * k, ids + row * k, heap);
    });
  });
}
