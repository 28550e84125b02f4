// The packed forms of a weight and how their values come out.
//
// A weight [N, K] is cut into blocks of 32 rows (outputs); each is one run of bytes with K outermost:
//   float32   [K][32] float
//   bfloat16  [K/2][32][2]
//   int8      per 32 of K: [8][32] words of four bytes (q + 128, lowest k lowest), then scale float16 [32]
//   int4      per 32 of K: [4][32] words of eight nibbles (lowest k lowest), then scale and minimum float16 [32] each
// Rows past N are zero. linear/packed.py makes these.
//
// walk<...>(block, k, f) calls f(step, values) for 32 of K from k on: the panel rows that tile.h multiplies with.
#pragma once

#include "../cpu/tile.h"

namespace sessile {

constexpr int GROUP = 32;

enum WeightForm : int32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT4 = 3 };

struct PackedWeight {
  const uint8_t* storage;
  int64_t rows;     // N
  int64_t columns;  // K, a multiple of 32
  int32_t form;
  int32_t reserved;
};

SESSILE_INLINE Words shifted(Words w, int left) { return left >= 0 ? w << left : w >> -left; }

// Hands two neighbouring K values to f, as one step or two.
template <class Step, class F>
SESSILE_INLINE void emit_pair(int k, const Words* first, const Words* second, F&& f) {
  Vec out[VECS];
  if constexpr (Step::WIDTH == 2) {
    for (int j = 0; j < VECS; ++j) out[j] = (Vec)((first[j] >> 16) | (second[j] & 0xffff0000u));
    f(k / 2, out);
  } else {
    for (int j = 0; j < VECS; ++j) out[j] = (Vec)(first[j] & 0xffff0000u);
    f(k, out);
    for (int j = 0; j < VECS; ++j) out[j] = (Vec)(second[j] & 0xffff0000u);
    f(k + 1, out);
  }
}

struct Float32Weight {
  using Step = FloatStep;
  static constexpr int64_t GROUP_BYTES = GROUP * COLUMNS * 4;
  static constexpr bool IS_PANEL = true;

  template <class F>
  static SESSILE_INLINE void walk(const uint8_t* group, F&& f) {
    const float* p = reinterpret_cast<const float*>(group);
#pragma GCC unroll 4
    for (int k = 0; k < GROUP; ++k) {
      Vec out[VECS];
      for (int j = 0; j < VECS; ++j) out[j] = load(p + k * COLUMNS + j * LANES);
      f(k, out);
    }
  }
};

struct Bfloat16Weight {
  using Step = Bfloat16Step;
  static constexpr int64_t GROUP_BYTES = GROUP * COLUMNS * 2;
  static constexpr bool IS_PANEL = Step::WIDTH == 2;

  template <class F>
  static SESSILE_INLINE void walk(const uint8_t* group, F&& f) {
#pragma GCC unroll 4
    for (int k = 0; k < GROUP; k += 2, group += COLUMNS * 4) {
      Words low[VECS], pair[VECS];
      for (int j = 0; j < VECS; ++j) {
        pair[j] = load_words(group + j * LANES * 4);
        low[j] = pair[j] << 16;
      }
      emit_pair<Step>(k, low, pair, f);
    }
  }
};

// int8 and int4: the integer goes into the mantissa of a number in [1, 2), so that one multiply-add with adjusted scale
// and offset gives q * scale + minimum; see linear/weights.py for the exact meaning. The product is exact even where it
// is rounded on its own (8 or 9 bits times 11), so all levels agree.
template <int BITS, int POSITION>
SESSILE_INLINE Words quantised_value(Words word, int index, Vec scale, Vec offset) {
  const uint32_t mask = ((1u << BITS) - 1) << POSITION;
  const Words field = (shifted(word, POSITION - BITS * index) & mask) | 0x3f800000u;
  return round_weight(fma((Vec)field, scale, offset));
}

template <int BITS, int POSITION, class Step, class F>
SESSILE_INLINE void walk_quantised(const uint8_t* group, const Vec* scale, const Vec* offset, F&& f) {
  constexpr int PER_WORD = 32 / BITS;
#pragma GCC unroll 1
  for (int word = 0; word < GROUP / PER_WORD; ++word, group += COLUMNS * 4) {
    Words words[VECS];
    for (int j = 0; j < VECS; ++j) words[j] = load_words(group + j * LANES * 4);
#pragma GCC unroll 8
    for (int i = 0; i < PER_WORD; i += 2) {
      Words first[VECS], second[VECS];
      for (int j = 0; j < VECS; ++j) {
        first[j] = quantised_value<BITS, POSITION>(words[j], i, scale[j], offset[j]);
        second[j] = quantised_value<BITS, POSITION>(words[j], i + 1, scale[j], offset[j]);
      }
      emit_pair<Step>(word * PER_WORD + i, first, second, f);
    }
  }
}

struct Int8Weight {
  using Step = Bfloat16Step;
  static constexpr int64_t GROUP_BYTES = GROUP * COLUMNS + COLUMNS * 2;
  static constexpr bool IS_PANEL = false;

  template <class F>
  static SESSILE_INLINE void walk(const uint8_t* group, F&& f) {
    const uint16_t* half = reinterpret_cast<const uint16_t*>(group + GROUP * COLUMNS);
    Vec scale[VECS], offset[VECS];
    for (int j = 0; j < VECS; ++j) {
      const Vec d = load_half(half + j * LANES);
      scale[j] = d * splat(256.0f);  // 1 + u / 2^8 for the byte at bit 15
      offset[j] = d * splat(-256.0f - 128.0f);
    }
    walk_quantised<8, 15, Step>(group, scale, offset, f);
  }
};

struct Int4Weight {
  using Step = Bfloat16Step;
  static constexpr int64_t GROUP_BYTES = GROUP * COLUMNS / 2 + COLUMNS * 4;
  static constexpr bool IS_PANEL = false;

  template <class F>
  static SESSILE_INLINE void walk(const uint8_t* group, F&& f) {
    const uint16_t* half = reinterpret_cast<const uint16_t*>(group + GROUP * COLUMNS / 2);
    Vec scale[VECS], offset[VECS];
    for (int j = 0; j < VECS; ++j) {
      scale[j] = load_half(half + j * LANES) * splat(128.0f);  // 1 + q / 2^7 for the nibble at bit 16
      offset[j] = load_half(half + COLUMNS + j * LANES) - scale[j];
    }
    walk_quantised<4, 16, Step>(group, scale, offset, f);
  }
};

// Calls f(Form{}) with the form's type.
template <class F>
SESSILE_INLINE void with_form(int32_t form, F&& f) {
  switch (form) {
    case FLOAT32: return f(Float32Weight{});
    case BFLOAT16: return f(Bfloat16Weight{});
    case INT8: return f(Int8Weight{});
    default: return f(Int4Weight{});
  }
}

inline int64_t block_bytes(const PackedWeight& weight) {
  const int64_t groups = weight.columns / GROUP;
  int64_t bytes = 0;
  with_form(weight.form, [&](auto form) { bytes = groups * decltype(form)::GROUP_BYTES; });
  return bytes;
}

}  // namespace sessile
