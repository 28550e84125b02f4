// Linear layers over packed weights.
//
// A unit of work is one block of 32 outputs times a piece of the rows. Few rows: the block's values go from its bytes
// straight into the multiply-adds, accumulators in registers over the whole of K. Many rows: 64 of K at a time go to a
// panel in the L1 cache that all the rows then use. Both are the same chain of operations for each output.
#include <algorithm>

#include "../cpu/ops.h"
#include "weights.h"

namespace sessile {
namespace {

constexpr int PIECE = 64;                 // of K, in a panel
constexpr int64_t ROWS_AT_ONCE = 12 * 16;  // whose accumulators and A rows stay in the L2 cache

// Rows that the direct way takes: their accumulators and the values' temporaries fit the registers.
#if SESSILE_LEVEL >= 2
constexpr int DIRECT_ROWS = 8;
#else
constexpr int DIRECT_ROWS = 1;
#endif

// Rows of A as the steps of `Form` read them.
struct Rows {
  const float* a;
  int64_t lda;  // in words
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
        const Vec element = splat(a[r * rows.lda + step]);
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
void through_panel(const uint8_t* block, int64_t groups, Rows rows, int64_t count, float* acc, float* panel) {
  constexpr int STEPS = GROUP / Form::Step::WIDTH;
  std::fill_n(acc, count * COLUMNS, 0.0f);
  for (int64_t g = 0; g < groups;) {
    const int64_t here = std::min<int64_t>(PIECE / GROUP, groups - g);
    const float* values = reinterpret_cast<const float*>(block);
    if constexpr (!Form::IS_PANEL) {
      values = panel;
      for (int64_t i = 0; i < here; ++i)
        Form::walk(block + i * Form::GROUP_BYTES, [&](int step, const Vec* b) __attribute__((always_inline)) {
          for (int j = 0; j < VECS; ++j) store(panel + (i * STEPS + step) * COLUMNS + j * LANES, b[j]);
        });
    }
    tiles<typename Form::Step>(rows.a + g * STEPS, rows.lda, count, values, here * STEPS, acc);
    block += here * Form::GROUP_BYTES;
    g += here;
  }
}

// acc [count, 32] = rows times one block of the weight.
template <class Form>
void block_product(const uint8_t* block, int64_t groups, Rows rows, int64_t count, float* acc, float* panel) {
  if (count <= DIRECT_ROWS)
    direct_rows<Form, DIRECT_ROWS>(block, groups, rows, count, acc);
  else
    through_panel<Form>(block, groups, rows, count, acc, panel);
}

// Rounds x to pairs of bfloat16 where the form's steps take them so; all workers together.
template <class Form>
Rows prepare_rows(Worker& worker, const Linear& op) {
  const int64_t columns = op.weight->columns;
  if constexpr (Form::Step::WIDTH == 1) {
    return {op.x, columns};
  } else {
    uint16_t* rounded = worker.team.shared<uint16_t>(0, op.rows * columns);
    worker.for_units(op.rows, [&](int64_t row) {
      for (int64_t k = 0; k < columns; ++k) rounded[row * columns + k] = to_bfloat16(op.x[row * columns + k]);
    });
    return {reinterpret_cast<const float*>(rounded), columns / 2};
  }
}

struct Pieces {
  int64_t count, rows;  // pieces, and rows in each but the last
};

Pieces split_rows(int64_t rows) {
  const int64_t count = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
  const int64_t each = (rows + count - 1) / count;
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

// Calls f(buffers, first row, rows, block) for each unit.
template <class F>
void for_blocks(Worker& worker, const Linear& op, int64_t blocks, F&& f) {
  const Buffers buffers(worker);
  const Pieces pieces = split_rows(op.rows);
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
                 block_product<Form>(op.weight->storage + block * stride, groups, {rows.a + first * rows.lda, rows.lda},
                                     count, buffers.acc, buffers.panel);
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
      const Rows here{rows.a + first * rows.lda, rows.lda};
      const uint8_t* gate = op.weight->storage + block * stride;
      block_product<Form>(gate, groups, here, count, buffers.acc, buffers.panel);
      block_product<Form>(gate + blocks * stride, groups, here, count, buffers.second, buffers.panel);
      write_gated(op, buffers.acc, buffers.second, first, count, block * COLUMNS);
    });
  });
}

}  // namespace sessile

extern "C" void sessile_linear(void* team, const sessile::Linear* op) {
  static_cast<sessile::Team*>(team)->run([&](sessile::Worker& worker) { sessile::linear(worker, *op); });
}
