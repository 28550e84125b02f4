// The inner product of everything: rows of A times a panel of 32 columns, accumulated in registers.
//
// A panel holds, for each step along K, 32 words. A step is one element of K (float words) or, with BF16 dot products,
// two (pairs of bfloat16). The accumulators come from memory and go back to it in float32, so that K can be walked in
// pieces: an output's sum is the same chain of operations whatever the pieces and whatever the number of rows.
#pragma once

#include "vec.h"

namespace sessile {

constexpr int COLUMNS = 32;
constexpr int VECS = COLUMNS / LANES;

// One element of K a step.
struct FloatStep {
  static constexpr int WIDTH = 1;
  static SESSILE_INLINE Vec apply(Vec a, Vec b, Vec c) { return fma(a, b, c); }
};

#if SESSILE_LEVEL >= 3
// Two elements of K a step; both operands are pairs of bfloat16.
struct PairStep {
  static constexpr int WIDTH = 2;
  static SESSILE_INLINE Vec apply(Vec a, Vec b, Vec c) {
#ifdef SESSILE_EMULATE_DPBF16  // so that tests can run this level's code on CPUs without the instruction
    const auto high = [](Vec v) { return (Vec)((Words)v & 0xffff0000u); };
    const auto low = [](Vec v) { return (Vec)((Words)v << 16); };
    return fma(low(a), low(b), fma(high(a), high(b), c));
#else
    return (Vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#endif
  }
};
using Bfloat16Step = PairStep;
#else
using Bfloat16Step = FloatStep;
#endif

// Rows whose accumulators fill the registers beside one panel row and one element of A.
#if SESSILE_LEVEL >= 2
constexpr int TILE_ROWS = 12;
#elif SESSILE_LEVEL == 1
constexpr int TILE_ROWS = 3;
#else
constexpr int TILE_ROWS = 1;
#endif

// Where the rows of A lie: word (r, s) is at r * row_stride + s * step_stride.
struct ByRows {
  int64_t row_stride;
  static constexpr int64_t STEP_STRIDE = 1;
  int64_t row() const { return row_stride; }
};
// A tile's rows interleaved, so that the tile is read in one run.
struct Interleaved {
  static constexpr int64_t STEP_STRIDE = TILE_ROWS;
  int64_t row() const { return 1; }
};

// acc[r][0..32) += a(r, s) * panel[s][0..32) over the steps; `acc` has 32 floats a row.
template <class Step, int ROWS, class Layout>
inline void tile(const float* a, Layout layout, const float* panel, int64_t steps, float* acc) {
  Vec c[ROWS][VECS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int j = 0; j < VECS; ++j) c[r][j] = load(acc + r * COLUMNS + j * LANES);
  for (int64_t s = 0; s < steps; ++s, a += Layout::STEP_STRIDE, panel += COLUMNS) {
    Vec b[VECS];
#pragma GCC unroll 16
    for (int j = 0; j < VECS; ++j) b[j] = load(panel + j * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const Vec element = splat(a[r * layout.row()]);
#pragma GCC unroll 16
      for (int j = 0; j < VECS; ++j) c[r][j] = Step::apply(element, b[j], c[r][j]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int j = 0; j < VECS; ++j) store(acc + r * COLUMNS + j * LANES, c[r][j]);
}

// The same for any number of rows up to ROWS.
template <class Step, int ROWS, class Layout>
inline void tile_of(const float* a, Layout layout, int64_t rows, const float* panel, int64_t steps, float* acc) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return tile<Step, ROWS>(a, layout, panel, steps, acc);
    tile_of<Step, ROWS - 1>(a, layout, rows, panel, steps, acc);
  }
}

// For any number of rows; `lda` words from one to the next.
template <class Step>
inline void tiles(const float* a, int64_t lda, int64_t rows, const float* panel, int64_t steps, float* acc) {
  for (; rows > 0; rows -= TILE_ROWS, a += TILE_ROWS * lda, acc += TILE_ROWS * COLUMNS)
    tile_of<Step, TILE_ROWS>(a, ByRows{lda}, rows < TILE_ROWS ? rows : TILE_ROWS, panel, steps, acc);
}

}  // namespace sessile
