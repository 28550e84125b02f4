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
    return (Vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
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

// acc[r][0..32) += a[r][s] * panel[s][0..32) over the steps; `a` has `lda` words a row, `acc` 32.
template <class Step, int ROWS>
inline void tile(const float* a, int64_t lda, const float* panel, int64_t steps, float* acc) {
  Vec c[ROWS][VECS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int j = 0; j < VECS; ++j) c[r][j] = load(acc + r * COLUMNS + j * LANES);
  for (int64_t s = 0; s < steps; ++s) {
    Vec b[VECS];
#pragma GCC unroll 16
    for (int j = 0; j < VECS; ++j) b[j] = load(panel + s * COLUMNS + j * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const Vec element = splat(a[r * lda + s]);
#pragma GCC unroll 16
      for (int j = 0; j < VECS; ++j) c[r][j] = Step::apply(element, b[j], c[r][j]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int j = 0; j < VECS; ++j) store(acc + r * COLUMNS + j * LANES, c[r][j]);
}

template <class Step, int ROWS>
inline void rest_of_tiles(const float* a, int64_t lda, int64_t rows, const float* panel, int64_t steps, float* acc) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return tile<Step, ROWS>(a, lda, panel, steps, acc);
    rest_of_tiles<Step, ROWS - 1>(a, lda, rows, panel, steps, acc);
  }
}

// The same for any number of rows.
template <class Step>
inline void tiles(const float* a, int64_t lda, int64_t rows, const float* panel, int64_t steps, float* acc) {
  for (; rows >= TILE_ROWS; rows -= TILE_ROWS, a += TILE_ROWS * lda, acc += TILE_ROWS * COLUMNS)
    tile<Step, TILE_ROWS>(a, lda, panel, steps, acc);
  rest_of_tiles<Step, TILE_ROWS - 1>(a, lda, rows, panel, steps, acc);
}

}  // namespace sessile
