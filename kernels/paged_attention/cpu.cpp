// Causal attention over block tables: one kernel for decode, verify and prefill.
//
// A context is cut into segments of 256 tokens at fixed positions. Inside a segment the softmax is online over stretches
// of 64 tokens (Milakov and Gimelshein, 2018, https://arxiv.org/abs/1805.02867); segments are merged in order. Both cuts
// depend on positions only, so a row's chain of operations is the same alone, in a batch, in any chunk, and however the
// work is shared out. Rows beyond their own position take part with weights of exactly zero.
//
// A unit of work is (sequence, key head, tile of query rows), over all segments; where that gives too few units for the
// team (decode), each segment is a unit and its partial result waits in memory for the merge.
#include <algorithm>
#include <type_traits>

#include "../cpu/ops.h"
#include "../cpu/tile.h"

namespace sessile {
namespace {

constexpr int STRETCH = 64;   // tokens of one online softmax update
constexpr int SEGMENT = 256;  // tokens whose partial result stands alone
constexpr int TILE = 96;      // query rows (tokens times heads that share a key head) of a unit, about
constexpr float LOWEST = -1e30f;

// So few rows (a decode's) read the pool directly; for more it is widened once, to a panel. With sixteen registers the
// panel is faster for any number.
constexpr int FEW_ROWS = SESSILE_LEVEL >= 2 ? 5 : 0;
constexpr int GROUPS_AT_ONCE = 4;  // of a direct read: accumulators enough to hide the latency of an FMA

// What differs between a float32 and a bfloat16 KV pool.
struct Float32Kv {
  using Step = FloatStep;
  static constexpr int PAIR = 1;  // elements that fill 32 bits
};
struct Bfloat16Kv {
  using Step = Bfloat16Step;
  static constexpr int PAIR = 2;
};

// A tile of query rows of one sequence and key head: row = token * group + head.
struct QueryTile {
  int64_t sequence, kv_head;
  int64_t first_token;  // in T
  int64_t tokens;
  int64_t context;  // tokens of KV that any row sees
};

// Running softmax of `rows` rows: O [panels][rows][32], sums [rows][LANES], maxima [rows].
struct Partial {
  float *output, *sum, *maximum;
};

struct Shape {
  int64_t head_dim, group, rows, panels;

  // Floats of a partial result, in whole cache lines.
  int64_t partial_floats() const { return (rows * (head_dim + LANES + 1) + 15) / 16 * 16; }
  Partial partial(float* at) const { return {at, at + rows * head_dim, at + rows * (head_dim + LANES)}; }
};

struct Buffers {
  float *queries, *panel, *scores, *weights;
  Partial segment, total;
  int32_t* seen;  // [rows] tokens that a row sees

  Buffers(Worker& worker, const Shape& shape) {
    const int64_t partial = shape.partial_floats();
    float* at = worker.scratch.get<float>(shape.rows * (shape.head_dim + 2 * STRETCH + 1) +
                                          STRETCH * shape.head_dim + 2 * partial + 64);
    panel = at;
    scores = panel + STRETCH * shape.head_dim;
    weights = scores + shape.rows * STRETCH;
    segment = shape.partial(weights + shape.rows * STRETCH);
    total = shape.partial(segment.output + partial);
    queries = total.output + partial;
    seen = reinterpret_cast<int32_t*>(queries + shape.rows * shape.head_dim);
  }
};

void clear(const Shape& shape, const Partial& partial) {
  std::fill_n(partial.output, shape.rows * shape.head_dim, 0.0f);
  std::fill_n(partial.sum, shape.rows * LANES, 0.0f);
  std::fill_n(partial.maximum, shape.rows, LOWEST);
}

// The rows of q in the words that steps read, [rows][head_dim / WIDTH].
template <class Step>
void load_queries(const Attention& op, const QueryTile& tile, const Shape& shape, float* queries) {
  const int64_t dim = shape.head_dim;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t token = tile.first_token + row / shape.group, head = tile.kv_head * shape.group + row % shape.group;
    const float* q = op.q + (token * op.heads.num_heads + head) * dim;
    if constexpr (Step::WIDTH == 1) {
      std::memcpy(queries + row * dim, q, dim * sizeof(float));
    } else {
      uint16_t* rounded = reinterpret_cast<uint16_t*>(queries) + row * dim;
      for (int64_t d = 0; d < dim; ++d) rounded[d] = to_bfloat16(q[d]);
    }
  }
}

// One run of 32-bit words (pairs of bfloat16, or floats) to the panel rows that they make.
template <class Kv>
SESSILE_INLINE void spread(const uint8_t* from, int count, float* row, int row_stride) {
  for (int j = 0; j < count; j += LANES) {
    const Words words = load_words(from + j * 4);
    if constexpr (Kv::PAIR == 1 || Kv::Step::WIDTH == 2) {
      store(row + j, (Vec)words);
    } else {
      store(row + j, (Vec)(words << 16));
      store(row + row_stride + j, (Vec)(words & 0xffff0000u));
    }
  }
}

const uint8_t* group_at(const Batch& batch, const KvLayer& kv, const QueryTile& tile, int64_t position,
                        int64_t group_bytes) {
  const int64_t block = batch.block_tables[tile.sequence * batch.max_blocks + position / kv.block_size];
  return kv.keys + block * kv.block_stride + tile.kv_head * kv.head_stride +
         position % kv.block_size / KV_GROUP * group_bytes;
}

// Asks for the keys (or, `offset` further, the values) of `count` tokens, while the arithmetic of others goes on.
void prefetch(const Batch& batch, const KvLayer& kv, const QueryTile& tile, int64_t position, int64_t count,
              int64_t group_bytes, int64_t offset) {
  for (int64_t g = 0; g < count; g += KV_GROUP) {
    const uint8_t* from = group_at(batch, kv, tile, position + g, group_bytes) + offset;
    for (int64_t line = 0; line < group_bytes; line += 64) __builtin_prefetch(from + line, 0, 2);
  }
}

// Keys of `count` tokens from `position` on, as panels of 32 tokens: [STRETCH / 32][head_dim / WIDTH][32].
template <class Kv>
void load_keys(const Batch& batch, const KvLayer& kv, const QueryTile& tile, int64_t position, int64_t count,
               int64_t dim, float* panel) {
  const int64_t steps = dim / Kv::Step::WIDTH;
  for (int64_t g = 0; g < count; g += KV_GROUP) {
    const uint8_t* keys = group_at(batch, kv, tile, position + g, KV_GROUP * dim * 4 / Kv::PAIR);
    float* row = panel + g / COLUMNS * steps * COLUMNS + g % COLUMNS;
    for (int64_t d = 0; d < dim; d += Kv::PAIR, keys += KV_GROUP * 4)
      spread<Kv>(keys, KV_GROUP, row + d / Kv::Step::WIDTH * COLUMNS, COLUMNS);
  }
}

// Values as panels of 32 dimensions: [head_dim / 32][STRETCH / WIDTH][32]. What lies past the context may be anything
// (a weight of zero times NaN is NaN), so those tokens are made zero.
template <class Kv>
void load_values(const Batch& batch, const KvLayer& kv, const QueryTile& tile, int64_t position, int64_t count,
                 int64_t dim, float* panel) {
  constexpr int64_t STEPS = STRETCH / Kv::Step::WIDTH;
  for (int64_t t = 0; t < count; t += Kv::PAIR) {
    const uint8_t* values = group_at(batch, kv, tile, position + t, KV_GROUP * dim * 4 / Kv::PAIR) + kv.value_offset +
                            t % KV_GROUP / Kv::PAIR * dim * 4;
    for (int64_t p = 0; p < dim / COLUMNS; ++p)
      spread<Kv>(values + p * COLUMNS * 4, COLUMNS, panel + (p * STEPS + t / Kv::Step::WIDTH) * COLUMNS, COLUMNS);
  }
  if (Kv::PAIR == 2 && count % 2) {  // the second token of the last pair is not there
    for (int64_t p = 0; p < dim / COLUMNS; ++p) {
      float* row = panel + (p * STEPS + count / Kv::Step::WIDTH) * COLUMNS;
      for (int j = 0; j < COLUMNS; j += LANES)
        store(row + j, Kv::Step::WIDTH == 2 ? (Vec)(load_words(row + j) & 0xffffu) : Vec{});
    }
  }
}

void scale_output(const Shape& shape, int64_t row, Vec factor, const Partial& partial) {
  for (int64_t p = 0; p < shape.panels; ++p)
    for (int j = 0; j < COLUMNS; j += LANES) {
      float* at = partial.output + (p * shape.rows + row) * COLUMNS + j;
      store(at, load(at) * factor);
    }
}

template <class Step>
void write_weights(Vec weight, int part, float* out) {
  if constexpr (Step::WIDTH == 1) {
    store(out + part * LANES, weight);
  } else {
    const Words rounded = to_bfloat16(weight);
    uint16_t* to = reinterpret_cast<uint16_t*>(out) + part * LANES;
    for (int j = 0; j < LANES; ++j) to[j] = uint16_t(rounded[j]);
  }
}

// One row's online softmax update: scores become weights, the row's output and sum are rescaled. PARTLY: the row does
// not see all tokens of the stretch; what it does not see weighs zero.
template <class Step, bool PARTLY>
void update_row(const Shape& shape, int64_t row, int64_t visible, float scale, const float* scores, float* weights,
                const Partial& partial) {
  constexpr int PARTS = STRETCH / LANES;
  Vec s[PARTS], top = splat(LOWEST);
#pragma GCC unroll 16
  for (int i = 0; i < PARTS; ++i) {
    const int column = i * LANES;
    s[i] = load(scores + column / COLUMNS * shape.rows * COLUMNS + column % COLUMNS) * splat(scale);
    if (PARTLY) s[i] = select(first_lanes(int(visible) - column), s[i], splat(LOWEST));
    top = max(s[i], top);
  }
  const float before = partial.maximum[row], maximum = std::max(before, max_lanes(top));
  Vec sum = load(partial.sum + row * LANES);
  if (maximum != before) {
    const Vec shrink = exp2(splat(before - maximum));
    sum = sum * shrink;
    scale_output(shape, row, shrink, partial);
    partial.maximum[row] = maximum;
  }
#pragma GCC unroll 16
  for (int i = 0; i < PARTS; ++i) {
    Vec weight = exp2(s[i] - splat(maximum));
    if (PARTLY) weight = select(first_lanes(int(visible) - i * LANES), weight, Vec{});
    sum = sum + weight;
    write_weights<Step>(weight, i, weights);
  }
  store(partial.sum + row * LANES, sum);
}

// Scores of `count` tokens from `position` on against the rows of A, by way of a panel: what is read from the pool is
// widened once for all rows. [STRETCH / 32][rows][32].
template <class Kv>
void score_by_panel(const Batch& batch, const KvLayer& kv, const QueryTile& tile, const Shape& shape, int64_t position,
                    int64_t count, const Buffers& buffers) {
  const int64_t steps = shape.head_dim / Kv::Step::WIDTH;
  load_keys<Kv>(batch, kv, tile, position, count, shape.head_dim, buffers.panel);
  std::fill_n(buffers.scores, shape.rows * STRETCH, 0.0f);
  for (int64_t c = 0; c < count; c += COLUMNS)
    tiles<typename Kv::Step>(buffers.queries, steps, shape.rows, buffers.panel + c * steps, steps,
                             buffers.scores + c * shape.rows);
}

// Adds the weighted values of `count` tokens to the rows' output, by way of a panel.
template <class Kv>
void add_values_by_panel(const Batch& batch, const KvLayer& kv, const QueryTile& tile, const Shape& shape,
                         int64_t position, int64_t count, const Buffers& buffers, const Partial& partial) {
  constexpr int64_t WEIGHT_WORDS = STRETCH / Kv::Step::WIDTH;
  load_values<Kv>(batch, kv, tile, position, count, shape.head_dim, buffers.panel);
  const int64_t steps = (count + Kv::Step::WIDTH - 1) / Kv::Step::WIDTH;
  for (int64_t p = 0; p < shape.panels; ++p)
    tiles<typename Kv::Step>(buffers.weights, WEIGHT_WORDS, shape.rows, buffers.panel + p * WEIGHT_WORDS * COLUMNS, steps,
                             partial.output + p * shape.rows * COLUMNS);
}

// acc[row][i] += a[row] * words[i] for the one or two elements of K in each word; a[row] points at the row's words.
template <class Kv, int ROWS, int VECTORS>
SESSILE_INLINE void multiply_words(const float* const (&a)[ROWS], int64_t word, const Words (&words)[VECTORS],
                                   Vec (&acc)[ROWS][VECTORS]) {
  using Step = typename Kv::Step;
  constexpr bool TWO_STEPS = Kv::PAIR == 2 && Step::WIDTH == 1;
  Vec part[VECTORS];
#pragma GCC unroll 16
  for (int i = 0; i < VECTORS; ++i) part[i] = TWO_STEPS ? (Vec)(words[i] << 16) : (Vec)words[i];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    const Vec element = splat(a[r][TWO_STEPS ? 2 * word : word]);
#pragma GCC unroll 16
    for (int i = 0; i < VECTORS; ++i) acc[r][i] = Step::apply(element, part[i], acc[r][i]);
  }
  if constexpr (TWO_STEPS) {
#pragma GCC unroll 16
    for (int i = 0; i < VECTORS; ++i) part[i] = (Vec)(words[i] & 0xffff0000u);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const Vec element = splat(a[r][2 * word + 1]);
#pragma GCC unroll 16
      for (int i = 0; i < VECTORS; ++i) acc[r][i] = Step::apply(element, part[i], acc[r][i]);
    }
  }
}

// Scores of GROUPS groups of tokens against few rows, straight from the pool: the same chain of operations as by a
// panel, without writing it.
template <class Kv, int ROWS, int GROUPS>
SESSILE_INLINE void score_groups(const Batch& batch, const KvLayer& kv, const QueryTile& tile, const Shape& shape,
                                 int64_t position, int64_t first, const Buffers& buffers) {
  constexpr int EACH = KV_GROUP / LANES, VECTORS = GROUPS * EACH;
  const int64_t words = shape.head_dim / Kv::PAIR, row_words = shape.head_dim / Kv::Step::WIDTH;
  const uint8_t* keys[GROUPS];
  for (int g = 0; g < GROUPS; ++g)
    keys[g] = group_at(batch, kv, tile, position + first + g * KV_GROUP, KV_GROUP * words * 4);
  const float* a[ROWS];
  for (int r = 0; r < ROWS; ++r) a[r] = buffers.queries + r * row_words;
  Vec acc[ROWS][VECTORS] = {};
  for (int64_t word = 0; word < words; ++word) {
    Words read[VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < VECTORS; ++i) read[i] = load_words(keys[i / EACH] + (word * EACH + i % EACH) * LANES * 4);
    multiply_words<Kv>(a, word, read, acc);
  }
  for (int r = 0; r < ROWS; ++r)
    for (int i = 0; i < VECTORS; ++i) {
      const int64_t token = first + i * LANES;
      store(buffers.scores + (token / COLUMNS * ROWS + r) * COLUMNS + token % COLUMNS, acc[r][i]);
    }
}

template <class Kv, int ROWS>
void score_directly(const Batch& batch, const KvLayer& kv, const QueryTile& tile, const Shape& shape, int64_t position,
                    int64_t count, const Buffers& buffers) {
  int64_t first = 0;
  for (; first + GROUPS_AT_ONCE * KV_GROUP <= count; first += GROUPS_AT_ONCE * KV_GROUP)
    score_groups<Kv, ROWS, GROUPS_AT_ONCE>(batch, kv, tile, shape, position, first, buffers);
  for (; first < count; first += KV_GROUP)
    score_groups<Kv, ROWS, 1>(batch, kv, tile, shape, position, first, buffers);
}

// Adds the weighted values of `count` tokens to VECTORS vectors of few rows' output, straight from the pool.
template <class Kv, int ROWS, int VECTORS>
SESSILE_INLINE void add_values_at(const Batch& batch, const KvLayer& kv, const QueryTile& tile, const Shape& shape,
                                  int64_t position, int64_t count, int64_t dim, const Buffers& buffers,
                                  const Partial& partial) {
  const int64_t row_bytes = shape.head_dim * 4, weight_words = STRETCH / Kv::Step::WIDTH;
  const auto at = [&](int r, int i) {
    const int64_t d = dim + i * LANES;
    return partial.output + (d / COLUMNS * ROWS + r) * COLUMNS + d % COLUMNS;
  };
  const float* a[ROWS];
  for (int r = 0; r < ROWS; ++r) a[r] = buffers.weights + r * weight_words;
  Vec acc[ROWS][VECTORS];
  for (int r = 0; r < ROWS; ++r)
    for (int i = 0; i < VECTORS; ++i) acc[r][i] = load(at(r, i));
  Words read[VECTORS];
  for (int64_t group = 0; group < count; group += KV_GROUP) {
    const uint8_t* values = group_at(batch, kv, tile, position + group, KV_GROUP * row_bytes / Kv::PAIR) +
                            kv.value_offset + dim * 4;
    const int64_t tokens = std::min<int64_t>(KV_GROUP, count - group), whole = tokens / Kv::PAIR;
    for (int64_t word = 0; word < whole; ++word, values += row_bytes) {
#pragma GCC unroll 16
      for (int i = 0; i < VECTORS; ++i) read[i] = load_words(values + i * LANES * 4);
      multiply_words<Kv>(a, group / Kv::PAIR + word, read, acc);
    }
    if (whole * Kv::PAIR < tokens) {  // the second token of the last pair is not there, and may be anything
#pragma GCC unroll 16
      for (int i = 0; i < VECTORS; ++i) read[i] = load_words(values + i * LANES * 4) & 0xffffu;
      multiply_words<Kv>(a, group / Kv::PAIR + whole, read, acc);
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int i = 0; i < VECTORS; ++i) store(at(r, i), acc[r][i]);
}

template <class Kv, int ROWS>
void add_values_directly(const Batch& batch, const KvLayer& kv, const QueryTile& tile, const Shape& shape,
                         int64_t position, int64_t count, const Buffers& buffers, const Partial& partial) {
  constexpr int VECTORS = GROUPS_AT_ONCE * KV_GROUP / LANES, AT_ONCE = VECTORS * LANES;
  int64_t dim = 0;
  for (; dim + AT_ONCE <= shape.head_dim; dim += AT_ONCE)
    add_values_at<Kv, ROWS, VECTORS>(batch, kv, tile, shape, position, count, dim, buffers, partial);
  for (; dim < shape.head_dim; dim += COLUMNS)
    add_values_at<Kv, ROWS, COLUMNS / LANES>(batch, kv, tile, shape, position, count, dim, buffers, partial);
}

// The scores of a stretch become weights, row by row.
template <class Step>
void update_rows(const Shape& shape, int64_t position, int64_t count, float scale, const Buffers& buffers,
                 const Partial& partial) {
  constexpr int64_t WEIGHT_WORDS = STRETCH / Step::WIDTH;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t visible = std::clamp<int64_t>(buffers.seen[row] - position, 0, count);
    float* weights = buffers.weights + row * WEIGHT_WORDS;
    const float* scores = buffers.scores + row * COLUMNS;
    if (visible == STRETCH)
      update_row<Step, false>(shape, row, visible, scale, scores, weights, partial);
    else if (visible > 0)
      update_row<Step, true>(shape, row, visible, scale, scores, weights, partial);
    else
      std::fill_n(weights, WEIGHT_WORDS, 0.0f);
  }
}

// Adds the tokens [position, position + count) to the rows' partial result. ROWS: how many rows, if they are few; 0 for
// any number, by way of panels.
template <class Kv, int ROWS>
void add_stretch(const Attention& op, const Batch& batch, const KvLayer& kv, const QueryTile& tile, const Shape& shape,
                 int64_t position, int64_t count, const Buffers& buffers, const Partial& partial) {
  const int64_t group_bytes = KV_GROUP * shape.head_dim * 4 / Kv::PAIR, next = position + STRETCH;
  const int64_t next_count = std::clamp<int64_t>(tile.context - next, 0, STRETCH);
  prefetch(batch, kv, tile, next, next_count, group_bytes, 0);
  if constexpr (ROWS > 0)
    score_directly<Kv, ROWS>(batch, kv, tile, shape, position, count, buffers);
  else
    score_by_panel<Kv>(batch, kv, tile, shape, position, count, buffers);
  update_rows<typename Kv::Step>(shape, position, count, op.scale * 1.44269504f /* of base 2 exponents */, buffers,
                                 partial);
  prefetch(batch, kv, tile, next, next_count, group_bytes, kv.value_offset);
  if constexpr (ROWS > 0)
    add_values_directly<Kv, ROWS>(batch, kv, tile, shape, position, count, buffers, partial);
  else
    add_values_by_panel<Kv>(batch, kv, tile, shape, position, count, buffers, partial);
}

// Calls f with `rows` as a constant if they are MOST or fewer, else with 0.
template <int MOST, class F>
void with_few_rows(int64_t rows, const F& f) {
  if constexpr (MOST > 0) {
    if (rows == MOST) return f(std::integral_constant<int, MOST>{});
    if (rows < MOST) return with_few_rows<MOST - 1>(rows, f);
  }
  f(std::integral_constant<int, 0>{});
}

template <class Kv>
void run_segment(const Attention& op, const Batch& batch, const KvLayer& kv, const QueryTile& tile, const Shape& shape,
                 int64_t segment, const Buffers& buffers, const Partial& partial) {
  clear(shape, partial);
  const int64_t end = std::min(tile.context, (segment + 1) * SEGMENT);
  const auto add_stretches = [&](auto rows) {
    for (int64_t position = segment * SEGMENT; position < end; position += STRETCH)
      add_stretch<Kv, decltype(rows)::value>(op, batch, kv, tile, shape, position,
                                             std::min<int64_t>(STRETCH, end - position), buffers, partial);
  };
  with_few_rows<FEW_ROWS>(shape.rows, add_stretches);
}

// total = total merged with a later segment, for the rows that see any of it.
void merge(const Shape& shape, const int32_t* seen, int64_t segment, const Partial& later,
           const Partial& total) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    if (seen[row] <= segment * SEGMENT) continue;
    const float maximum = std::max(total.maximum[row], later.maximum[row]);
    const Vec keep = exp2(splat(total.maximum[row] - maximum)), take = exp2(splat(later.maximum[row] - maximum));
    total.maximum[row] = maximum;
    float* sum = total.sum + row * LANES;
    store(sum, fma(load(later.sum + row * LANES), take, load(sum) * keep));
    for (int64_t p = 0; p < shape.panels; ++p)
      for (int j = 0; j < COLUMNS; j += LANES) {
        const int64_t at = (p * shape.rows + row) * COLUMNS + j;
        store(total.output + at, fma(load(later.output + at), take, load(total.output + at) * keep));
      }
  }
}

void finish(const Attention& op, const QueryTile& tile, const Shape& shape, const Partial& total) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t token = tile.first_token + row / shape.group, head = tile.kv_head * shape.group + row % shape.group;
    float* out = op.out + (token * op.heads.num_heads + head) * shape.head_dim;
    const Vec factor = splat(1.0f / sum_lanes(load(total.sum + row * LANES)));
    for (int64_t d = 0; d < shape.head_dim; d += LANES) {
      const float* from = total.output + (d / COLUMNS * shape.rows + row) * COLUMNS + d % COLUMNS;
      // Adding zero turns -0 to +0: rows that took part with zero weights may differ in nothing else.
      store(out + d, load(from) * factor + Vec{});
    }
  }
}

// The tiles of a step, in order; found by walking the sequences, since there are few.
class Tiles {
 public:
  Tiles(const Attention& op, const Batch& batch)
      : batch_(batch), kv_heads_(op.heads.num_kv_heads), group_(op.heads.num_heads / op.heads.num_kv_heads) {
    each_ = std::max<int64_t>(1, TILE / group_);
    for (int64_t s = 0; s < batch.num_sequences; ++s) {
      count_ += tiles_of(s) * kv_heads_;
      longest_ = std::max<int64_t>(longest_, batch.context_lens[s]);
      most_ = std::max(most_, std::min(each_, tokens_of(s)));
    }
  }

  int64_t count() const { return count_; }
  int64_t group() const { return group_; }
  int64_t most_rows() const { return most_ * group_; }
  int64_t most_segments() const { return (longest_ + SEGMENT - 1) / SEGMENT; }

  QueryTile at(int64_t index) const {
    int64_t sequence = 0;
    for (; index >= tiles_of(sequence) * kv_heads_; ++sequence) index -= tiles_of(sequence) * kv_heads_;
    // The last tiles see the longest contexts: they go first, so that no worker is left alone with one at the end.
    const int64_t which = tiles_of(sequence) - 1 - index / kv_heads_;
    const int64_t tokens = std::min(each_, tokens_of(sequence) - which * each_);
    const int64_t first = batch_.query_start[sequence] + which * each_;
    return {sequence, index % kv_heads_, first, tokens, batch_.positions[first + tokens - 1] + 1};
  }

 private:
  int64_t tokens_of(int64_t s) const { return batch_.query_start[s + 1] - batch_.query_start[s]; }
  int64_t tiles_of(int64_t s) const { return (tokens_of(s) + each_ - 1) / each_; }

  const Batch& batch_;
  int64_t kv_heads_, group_, each_, count_ = 0, longest_ = 0, most_ = 0;
};

// A tile with its buffers filled: queries, and how far each row sees.
template <class Kv>
struct Unit {
  QueryTile tile;
  Shape shape;
  Buffers buffers;

  Unit(Worker& worker, const Attention& op, const Batch& batch, const QueryTile& which, int64_t group)
      : tile(which), shape{op.heads.head_dim, group, which.tokens * group, op.heads.head_dim / COLUMNS},
        buffers(worker, shape) {
    for (int64_t row = 0; row < shape.rows; ++row) buffers.seen[row] = batch.positions[tile.first_token + row / group] + 1;
    load_queries<typename Kv::Step>(op, tile, shape, buffers.queries);
  }
};

// Each unit is a tile, over all its segments.
template <class Kv>
void by_tiles(Worker& worker, const Attention& op, const Batch& batch, const KvLayer& kv, const Tiles& all) {
  worker.for_units(all.count(), [&](int64_t index) {
    const Unit<Kv> unit(worker, op, batch, all.at(index), all.group());
    const Buffers& buffers = unit.buffers;
    run_segment<Kv>(op, batch, kv, unit.tile, unit.shape, 0, buffers, buffers.total);
    for (int64_t segment = 1; segment * SEGMENT < unit.tile.context; ++segment) {
      run_segment<Kv>(op, batch, kv, unit.tile, unit.shape, segment, buffers, buffers.segment);
      merge(unit.shape, buffers.seen, segment, buffers.segment, buffers.total);
    }
    finish(op, unit.tile, unit.shape, buffers.total);
  });
}

// Each unit is one segment of a tile; then each tile is merged.
template <class Kv>
void by_segments(Worker& worker, const Attention& op, const Batch& batch, const KvLayer& kv, const Tiles& all) {
  const int64_t segments = all.most_segments();
  const int64_t stride = Shape{op.heads.head_dim, 0, all.most_rows(), 0}.partial_floats();
  float* partials = worker.team.shared<float>(1, all.count() * segments * stride);
  const auto partial = [&](const Shape& shape, int64_t index, int64_t segment) {
    return shape.partial(partials + (index * segments + segment) * stride);
  };
  worker.for_units(all.count() * segments, [&](int64_t i) {
    const int64_t index = i / segments, segment = i % segments;
    const QueryTile tile = all.at(index);
    if (segment * SEGMENT >= tile.context) return;
    const Unit<Kv> unit(worker, op, batch, tile, all.group());
    run_segment<Kv>(op, batch, kv, tile, unit.shape, segment, unit.buffers, partial(unit.shape, index, segment));
  });
  worker.for_units(all.count(), [&](int64_t index) {
    const Unit<Kv> unit(worker, op, batch, all.at(index), all.group());
    const Partial total = partial(unit.shape, index, 0);
    for (int64_t segment = 1; segment * SEGMENT < unit.tile.context; ++segment)
      merge(unit.shape, unit.buffers.seen, segment, partial(unit.shape, index, segment), total);
    finish(op, unit.tile, unit.shape, total);
  });
}

template <class Kv>
void attention(Worker& worker, const Attention& op, const Batch& batch, const KvLayer& kv) {
  const Tiles all(op, batch);
  const bool few = all.count() < 8 * worker.team.size() && all.most_segments() > 1;
  few ? by_segments<Kv>(worker, op, batch, kv, all) : by_tiles<Kv>(worker, op, batch, kv, all);
}

}  // namespace

void paged_attention(Worker& worker, const Attention& op, const Batch& batch, const KvLayer& kv) {
  if (kv.is_bfloat16)
    attention<Bfloat16Kv>(worker, op, batch, kv);
  else
    attention<Float32Kv>(worker, op, batch, kv);
}

}  // namespace sessile

extern "C" void sessile_paged_attention(void* team, const sessile::Attention* op, const sessile::Batch* batch,
                                        const sessile::KvLayer* kv) {
  static_cast<sessile::Team*>(team)->run(
      [&](sessile::Worker& worker) { sessile::paged_attention(worker, *op, *batch, *kv); });
}
