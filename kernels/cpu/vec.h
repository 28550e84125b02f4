// Vectors of float and of 32-bit words at the width of the level that is being built.
//
// SESSILE_LEVEL: 0 plain C++, 1 AVX2, 2 AVX-512, 3 AVX-512 with BF16 dot products. Arithmetic and bit operations are
// the compiler's own vector extensions; only what they lack is an intrinsic.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if SESSILE_LEVEL > 0
#include <immintrin.h>
#endif

#define SESSILE_INLINE inline __attribute__((always_inline))

namespace sessile {

#if SESSILE_LEVEL >= 2
constexpr int LANES = 16;
#elif SESSILE_LEVEL == 1
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef float VecAnywhere __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

SESSILE_INLINE Vec load(const float* p) { return *reinterpret_cast<const VecAnywhere*>(p); }
SESSILE_INLINE void store(float* p, Vec v) { *reinterpret_cast<VecAnywhere*>(p) = v; }
SESSILE_INLINE Words load_words(const void* p) { return (Words)load(static_cast<const float*>(p)); }

// x in every lane. (Vec{} + x would do, but adds.)
SESSILE_INLINE Vec splat(float x) {
#if SESSILE_LEVEL >= 2
  return (Vec)_mm512_set1_ps(x);
#elif SESSILE_LEVEL == 1
  return (Vec)_mm256_set1_ps(x);
#else
  return Vec{x, x, x, x};
#endif
}

SESSILE_INLINE Words splat_word(uint32_t x) { return Words{} + x; }

// a * b + c, rounded once where the machine can.
SESSILE_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if SESSILE_LEVEL >= 2
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif SESSILE_LEVEL == 1
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

SESSILE_INLINE Vec max(Vec a, Vec b) {
#if SESSILE_LEVEL >= 2
  return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif SESSILE_LEVEL == 1
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

SESSILE_INLINE Vec select(Words mask, Vec a, Vec b) { return (Vec)(((Words)a & mask) | ((Words)b & ~mask)); }

// All ones in the lanes whose index is below `count`.
SESSILE_INLINE Words first_lanes(int count) {
  Words index;
  for (int i = 0; i < LANES; ++i) index[i] = i;
  return (Words)(index < splat_word(count < 0 ? 0 : count));
}

// The sum of the lanes, in one order (halves, then halves of halves).
SESSILE_INLINE float sum_lanes(Vec v) {
  float lanes[LANES];
  std::memcpy(lanes, &v, sizeof lanes);
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

SESSILE_INLINE float max_lanes(Vec v) {
#if SESSILE_LEVEL >= 2
  return _mm512_reduce_max_ps((__m512)v);
#else
  float best = v[0];
  for (int i = 1; i < LANES; ++i) best = v[i] > best ? v[i] : best;
  return best;
#endif
}

// LANES half-precision numbers as float.
SESSILE_INLINE Vec load_half(const uint16_t* p) {
#if SESSILE_LEVEL >= 2
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif SESSILE_LEVEL == 1
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  Vec out;
  for (int i = 0; i < LANES; ++i) {
    const uint32_t sign = (p[i] & 0x8000u) << 16, magnitude = p[i] & 0x7fffu;
    // Shifted into place the exponent is 112 too small; multiplying by 2^112 also repairs subnormal numbers.
    uint32_t bits = magnitude << 13;
    float value;
    std::memcpy(&value, &bits, 4);
    value *= 0x1p112f;
    out[i] = sign ? -value : value;
  }
  return out;
#endif
}

// To the nearest bfloat16, ties away from zero, as a float whose low half is zero. See linear/weights.py.
SESSILE_INLINE Words round_weight(Vec v) { return ((Words)v + 0x8000u) & 0xffff0000u; }

// To the nearest bfloat16, ties to even (torch's rounding), in the low half of each word.
SESSILE_INLINE Words to_bfloat16(Vec v) {
  const Words bits = (Words)v;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

SESSILE_INLINE uint16_t to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

SESSILE_INLINE float from_bfloat16(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// 2^x, relative error below 3e-7; below 2^-126 exactly zero. For x <= 127.
SESSILE_INLINE Vec exp2(Vec x) {
  const Vec magic = splat(0x1.8p23f);  // adding it leaves the nearest integer in the low bits
  const Words tiny = (Words)(x < splat(-126.0f));
  x = select(tiny, Vec{}, x);
  const Vec shifted = x + magic;
  const Vec r = x - (shifted - magic);  // [-1/2, 1/2]
  Vec p = splat(1.5353362e-4f);  // minimax polynomial of 2^r
  p = fma(p, r, splat(1.3398874e-3f));
  p = fma(p, r, splat(9.6184373e-3f));
  p = fma(p, r, splat(5.5503324e-2f));
  p = fma(p, r, splat(2.4022648e-1f));
  p = fma(p, r, splat(6.9314718e-1f));
  p = fma(p, r, splat(1.0f));
  const Words exponent = (Words)shifted << 23;  // the integer times 2^23; the magic's own bits fall out at the top
  return select(tiny, Vec{}, (Vec)((Words)p + exponent));
}

// x / (1 + e^-x)
SESSILE_INLINE Vec silu(Vec x) {
  // Beyond +-88 the result is x or (next to it) zero; the clamp keeps e^-x finite.
  const Vec negated = max(splat(-88.0f), Vec{} - x);
  const Vec bounded = Vec{} - max(splat(-88.0f), Vec{} - negated);
  return x / (splat(1.0f) + exp2(bounded * splat(1.44269504f)));
}

}  // namespace sessile
