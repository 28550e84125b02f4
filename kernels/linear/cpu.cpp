// Linear layers over packed weights.
//
// A unit of work is one block of 32 outputs times a piece of the rows. Few rows: the block's values go from its bytes
// straight into the multiply-adds, accumulators in registers over the whole of K. Many rows: a piece of K at a time goes
// to a panel in the L1 cache that all the rows then use, the rows interleaved in tiles beforehand. Both are the same
// chain of operations for each output.
#include <algorithm>

#include "../cpu/ops.h"
#include "weights.h"

namespace sessile {
namespace {

constexpr int PIECE = 192;                        // of K, in a panel
constexpr int64_t ROWS_AT_ONCE = 16 * TILE_ROWS;  // at most, in a unit: their accumulators stay in the caches
constexpr int64_t A_WORDS_AT_ONCE = 1 << 17;      // of A, in a unit: half an L2 cache of 1 MB

// Rows that the direct way takes: their accumulators and the values' temporaries fit the registers.
#if SESSILE_LEVEL >= 2
constexpr int DIRECT_ROWS = 8;
#else
constexpr int DIRECT_ROWS = 1;
#endif

// Rows of A as the steps of a form read them: one after the other, or (many rows) interleaved in tiles.
struct Rows {
  const float* a;
  int64_t words;  // of a row
};

template <class Form, int ROWS>
void direct(const uint8_t* block, int64_t groups, Rows rows, float* acc) {
  Vec c[ROWS][VECS] = {};
  const float* a = rows.a;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t line = 0; line < Form::GROUP_BYTES; line += 64) __builtin_prefetch(block + 2048 + line);
    Form::walk(block, [&](int step, const Vec* b) __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const Vec element = splat(a[r * rows.words + step]);
#pragma GCC unroll 16
        for (int j = 0; j < VECS; ++j) c[r][j] = Form::Step::apply(element, b[j], c[r][j]);
      }
    });
    block += Form::GROUP_BYTES;
    a += GROUP / Form::Step::WIDTH;
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int j = 0; j < VECS; ++j) store(acc + r * COLUMNS + j * LANES, c[r][j]);
}

template <class Form, int ROWS>
void direct_rows(const uint8_t* block, int64_t groups, Rows rows, int64_t count, float* acc) {
  if constexpr (ROWS > 0) {
    if (count == ROWS) return direct<Form, ROWS>(block, groups, rows, acc);
    direct_rows<Form, ROWS - 1>(block, groups, rows, count, acc);
  }
}

template <class Form>
const float* fill_panel(const uint8_t* block, int64_t groups, float* panel) {
  constexpr int STEPS = GROUP / Form::Step::WIDTH;
  if constexpr (Form::IS_PANEL) return reinterpret_cast<const float*>(block);
  for (int64_t i = 0; i < groups; ++i)
    Form::walk(block + i * Form::GROUP_BYTES, [&](int step, const Vec* b) __attribute__((always_inline)) {
      for (int j = 0; j < VECS; ++j) store(panel + (i * STEPS + step) * COLUMNS + j * LANES, b[j]);
    });
  return panel;
}

template <class Form>
void through_panel(const uint8_t* block, int64_t groups, Rows rows, int64_t count, float* acc, float* panel) {
  constexpr int STEPS = GROUP / Form::Step::WIDTH;
  std::fill_n(acc, count * COLUMNS, 0.0f);
  for (int64_t g = 0; g < groups; g += PIECE / GROUP) {
    const int64_t here = std::min<int64_t>(PIECE / GROUP, groups - g);
    const float* values = fill_panel<Form>(block + g * Form::GROUP_BYTES, here, panel);
    for (int64_t r = 0; r < count; r += TILE_ROWS)
      tile_of<typename Form::Step, TILE_ROWS>(rows.a + r * rows.words + g * STEPS * TILE_ROWS, Interleaved{},
                                              std::min<int64_t>(TILE_ROWS, count - r), values, here * STEPS,
                                              acc + r * COLUMNS);
  }
}

// acc [count, 32] = rows times one block of the weight.
template <class Form>
void block_product(const uint8_t* block, int64_t groups, Rows rows, int64_t count, bool few, float* acc, float* panel) {
  if (few)
    direct_rows<Form, DIRECT_ROWS>(block, groups, rows, count, acc);
  else
    through_panel<Form>(block, groups, rows, count, acc, panel);
}

typedef float Four __attribute__((vector_size(16)));
typedef float FourAnywhere __attribute__((vector_size(16), aligned(4), may_alias));

// Four words of each of four rows: out[step * TILE_ROWS + row].
SESSILE_INLINE void interleave_four(const float* rows, int64_t words, float* out) {
  const auto row = [&](int r) { return Four(*reinterpret_cast<const FourAnywhere*>(rows + r * words)); };
  typedef int Index __attribute__((vector_size(16)));
  const Index low{0, 4, 1, 5}, high{2, 6, 3, 7}, first{0, 1, 4, 5}, second{2, 3, 6, 7};
  const Four a = __builtin_shuffle(row(0), row(1), low), b = __builtin_shuffle(row(2), row(3), low);
  const Four c = __builtin_shuffle(row(0), row(1), high), d = __builtin_shuffle(row(2), row(3), high);
  const Four steps[4] = {__builtin_shuffle(a, b, first), __builtin_shuffle(a, b, second),
                         __builtin_shuffle(c, d, first), __builtin_shuffle(c, d, second)};
  for (int s = 0; s < 4; ++s) *reinterpret_cast<FourAnywhere*>(out + s * TILE_ROWS) = steps[s];
}

// Rows (at most TILE_ROWS) one after the other, to one interleaved tile. `words` is a multiple of 4.
void interleave(const float* rows, int64_t count, int64_t words, float* out) {
  for (int64_t r = 0; r < count;) {
    const bool four = count - r >= 4;
    for (int64_t s = 0; s < words; s += 4) {
      if (four)
        interleave_four(rows + r * words + s, words, out + s * TILE_ROWS + r);
      else
        for (int64_t i = 0; i < 4; ++i) out[(s + i) * TILE_ROWS + r] = rows[r * words + s + i];
    }
    r += four ? 4 : 1;
  }
}

void round_rows(const float* x, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = to_bfloat16(x[i]);
}

// x as the form's steps read it, in a buffer of the team's where it must change; all workers together.
template <class Form>
Rows prepare_rows(Worker& worker, const Linear& op) {
  constexpr bool ROUND = Form::Step::WIDTH == 2;
  const int64_t columns = op.weight->columns, words = columns / Form::Step::WIDTH;
  const bool few = op.rows <= DIRECT_ROWS;
  if (few && !ROUND) return {op.x, words};
  const int64_t tiles = (op.rows + TILE_ROWS - 1) / TILE_ROWS;
  float* out = worker.team.shared<float>(0, tiles * TILE_ROWS * words);
  worker.for_units(tiles, [&](int64_t tile) {
    const int64_t first = tile * TILE_ROWS, count = std::min<int64_t>(TILE_ROWS, op.rows - first);
    const float* rows = op.x + first * columns;
    float* to = out + first * words;
    if constexpr (ROUND) {
      float* rounded = few ? to : worker.scratch.get<float>(TILE_ROWS * words);
      round_rows(rows, count * columns, reinterpret_cast<uint16_t*>(rounded));
      rows = rounded;
    }
    if (!few) interleave(rows, count, words, to);
  });
  return {out, words};
}

struct Pieces {
  int64_t count, rows;  // pieces, and rows in each but the last
};

Pieces split_rows(int64_t rows, int64_t words) {
  const int64_t most = std::clamp<int64_t>(A_WORDS_AT_ONCE / words, 2 * TILE_ROWS, ROWS_AT_ONCE);
  const int64_t count = (rows + most - 1) / most, each = (rows + count - 1) / count;
  return {count, (each + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS};
}

// The accumulators of one unit (of two blocks at most) and a panel, in the worker's scratch.
struct Buffers {
  float *panel, *acc, *second;
  explicit Buffers(Worker& worker) {
    panel = worker.scratch.get<float>(PIECE * COLUMNS + 2 * (ROWS_AT_ONCE + TILE_ROWS) * COLUMNS);
    acc = panel + PIECE * COLUMNS;
    second = acc + (ROWS_AT_ONCE + TILE_ROWS) * COLUMNS;
  }
};

// Brings the lines that will be written to the caches while the arithmetic goes on.
void prefetch_out(float* out, int64_t width, int64_t first_row, int64_t count, int64_t column) {
  for (int64_t r = 0; r < count; ++r)
    for (int i = 0; i < COLUMNS; i += 16) __builtin_prefetch(out + (first_row + r) * width + column + i, 1);
}

// One row's 32 accumulators (columns of them wanted) plus bias and residual.
void write_row(const Linear& op, const float* acc, int64_t at, int64_t column, int64_t columns) {
  if (columns < COLUMNS) {
    for (int64_t i = 0; i < columns; ++i) {
      float value = acc[i];
      if (op.bias) value += op.bias[column + i];
      if (op.residual) value += op.residual[at + i];
      op.out[at + i] = value;
    }
    return;
  }
  for (int j = 0; j < COLUMNS; j += LANES) {
    Vec value = load(acc + j);
    if (op.bias) value = value + load(op.bias + column + j);
    if (op.residual) value = value + load(op.residual + at + j);
    store(op.out + at + j, value);
  }
}

void write_out(const Linear& op, const float* acc, int64_t first_row, int64_t count, int64_t column) {
  const int64_t width = op.weight->rows, columns = std::min<int64_t>(COLUMNS, width - column);
  for (int64_t r = 0; r < count; ++r)
    write_row(op, acc + r * COLUMNS, (first_row + r) * width + column, column, columns);
}

void write_gated(const Linear& op, const float* gate, const float* up, int64_t first_row, int64_t count, int64_t column) {
  const int64_t width = op.weight->rows / 2;
  for (int64_t r = 0; r < count; ++r)
    for (int j = 0; j < COLUMNS; j += LANES)
      store(op.out + (first_row + r) * width + column + j,
            silu(load(gate + r * COLUMNS + j)) * load(up + r * COLUMNS + j));
}

// Few rows wait for memory: each worker reads a few long runs of blocks, not every other block.
template <class F>
void for_runs(Worker& worker, int64_t blocks, F&& f) {
  const int64_t runs = 2 * worker.team.size(), each = (blocks + runs - 1) / runs;
  worker.for_units((blocks + each - 1) / each, [&](int64_t run) {
    for (int64_t block = run * each; block < std::min(blocks, (run + 1) * each); ++block) f(block);
  });
}

// Calls f(buffers, first row, rows, block) for each unit.
template <class F>
void for_blocks(Worker& worker, const Linear& op, int64_t blocks, F&& f) {
  const Buffers buffers(worker);
  if (op.rows <= DIRECT_ROWS) return for_runs(worker, blocks, [&](int64_t block) { f(buffers, 0, op.rows, block); });
  const Pieces pieces = split_rows(op.rows, op.weight->columns);
  worker.for_units(pieces.count * blocks, [&](int64_t unit) {
    const int64_t first = unit / blocks * pieces.rows;
    const int64_t count = std::min(pieces.rows, op.rows - first);
    if (count > 0) f(buffers, first, count, unit % blocks);
  });
}

}  // namespace

void linear(Worker& worker, const Linear& op) {
  with_form(op.weight->form, [&](auto form) {
    using Form = decltype(form);
    const Rows rows = prepare_rows<Form>(worker, op);
    const int64_t groups = op.weight->columns / GROUP, stride = groups * Form::GROUP_BYTES;
    for_blocks(worker, op, (op.weight->rows + COLUMNS - 1) / COLUMNS,
               [&](const Buffers& buffers, int64_t first, int64_t count, int64_t block) {
                 prefetch_out(op.out, op.weight->rows, first, count, block * COLUMNS);
                 block_product<Form>(op.weight->storage + block * stride, groups, {rows.a + first * rows.words, rows.words},
                                     count, op.rows <= DIRECT_ROWS, buffers.acc, buffers.panel);
                 write_out(op, buffers.acc, first, count, block * COLUMNS);
               });
  });
}

void linear_silu_mul(Worker& worker, const Linear& op) {
  with_form(op.weight->form, [&](auto form) {
    using Form = decltype(form);
    const Rows rows = prepare_rows<Form>(worker, op);
    const int64_t groups = op.weight->columns / GROUP, stride = groups * Form::GROUP_BYTES;
    const int64_t blocks = op.weight->rows / 2 / COLUMNS;
    for_blocks(worker, op, blocks, [&](const Buffers& buffers, int64_t first, int64_t count, int64_t block) {
      const Rows here{rows.a + first * rows.words, rows.words};
      const bool few = op.rows <= DIRECT_ROWS;
      prefetch_out(op.out, op.weight->rows / 2, first, count, block * COLUMNS);
      const uint8_t* gate = op.weight->storage + block * stride;
      block_product<Form>(gate, groups, here, count, few, buffers.acc, buffers.panel);
      block_product<Form>(gate + blocks * stride, groups, here, count, few, buffers.second, buffers.panel);
      write_gated(op, buffers.acc, buffers.second, first, count, block * COLUMNS);
    });
  });
}

}  // namespace sessile

extern "C" void sessile_linear(void* team, const sessile::Linear* op) {
  static_cast<sessile::Team*>(team)->run([&](sessile::Worker& worker) { sessile::linear(worker, *op); });
}
