#include "optim/one_pass.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "optim/convert.h"
#include "optim/random_bits.h"

namespace fsdp::optim {
namespace {

constexpr int64_t kGrain = 1 << 15;  // least number of elements for a thread
constexpr int64_t kBlock = 512;      // number of elements that are converted at a time
constexpr size_t kMostColumns = kMostStates + 2;
constexpr size_t kRows = 0, kGradient = 1;

// The memory of one tensor of a run: the rows, the gradient or a state.
struct Column {
  char* memory = nullptr;
  at::ScalarType dtype = at::kFloat;
  size_t element_size = 0;
  char* at(int64_t n) const { return memory + static_cast<size_t>(n) * element_size; }
};

struct Columns {
  std::array<Column, kMostColumns> all;
  size_t count = 0;
  void add(const at::Tensor& tensor) {
    // The const_cast is safe because the only const tensor is the gradient, and the pass does not write the gradient.
    all[count++] = {static_cast<char*>(const_cast<void*>(tensor.const_data_ptr())), tensor.scalar_type(),
                    static_cast<size_t>(tensor.element_size())};
  }
};

struct Pass {
  Columns columns;
  const Rule& rule;
  const StepOptions& options;
  int64_t step;
};

// Returns the number of the random stream for one column of a parameter in a step. The numbers repeat after 2^32 steps.
uint64_t stream_of(int64_t step, int64_t parameter, size_t column) {
  return static_cast<uint64_t>(step) << 32 | static_cast<uint64_t>(parameter) << 3 | column;
}

template <class T>
using Buffers = std::array<std::array<T, kBlock>, kMostColumns>;

// Updates `count` elements, beginning with the run's element `n`. Unless all columns have the type T, `count` is at
// most kBlock, the size of the buffers.
template <class T>
void update_some(const Pass& pass, const Piece& piece, int64_t n, int64_t count, Buffers<T>& buffers) {
  constexpr auto kDtype = c10::CppTypeToScalarType<T>::value;
  const auto& columns = pass.columns;
  std::array<T*, kMostColumns> values{};
  for (size_t i = 0; i < columns.count; ++i) {
    const auto& column = columns.all[i];
    values[i] = column.dtype == kDtype ? reinterpret_cast<T*>(column.at(n)) : buffers[i].data();
    if (column.dtype != kDtype) read_as(values[i], column.at(n), column.dtype, count);
  }
  update_block<T>({values[kRows],
                   values[kGradient],
                   {values[2], values[3], values[4]},
                   count,
                   static_cast<T>(pass.options.factor)},
                  pass.rule);
  for (size_t i = 0; i < columns.count; ++i) {
    const auto& column = columns.all[i];
    if (i == kGradient || column.dtype == kDtype) continue;
    if (!pass.options.state.stochastic_rounding || column.dtype != at::kBFloat16) {
      write_as(column.at(n), column.dtype, values[i], count);
      continue;
    }
    std::array<uint16_t, kBlock> random;
    fill_random(std::span(random).first(static_cast<size_t>(count)), pass.options.state.seed,
                stream_of(pass.step, piece.parameter, i), piece.first_element + n - piece.offset);
    write_stochastically(column.at(n), values[i], random.data(), count);
  }
}

template <class T>
void update_piece(const Pass& pass, const Piece& piece) {
  const auto& columns = pass.columns;
  const bool is_in_place = std::all_of(columns.all.begin(), columns.all.begin() + columns.count, [](const Column& c) {
    return c.dtype == c10::CppTypeToScalarType<T>::value;
  });
  at::parallel_for(piece.offset, piece.offset + piece.numel, kGrain, [&](int64_t begin, int64_t end) {
    Buffers<T> buffers;
    const int64_t most = is_in_place ? end - begin : kBlock;
    for (int64_t n = begin; n < end; n += most) update_some<T>(pass, piece, n, std::min(most, end - n), buffers);
  });
}

}  // namespace

void update_in_one_pass(const FlatRun& run, const Rule& rule, const StepOptions& options, int64_t step) {
  Pass pass{{}, rule, options, step};
  pass.columns.add(run.rows);
  pass.columns.add(run.gradient);
  for (const auto& state : run.states) pass.columns.add(state);
  const auto update = [&](const Piece& piece) {
    if (run.rows.scalar_type() == at::kDouble)
      update_piece<double>(pass, piece);
    else
      update_piece<float>(pass, piece);
  };
  // Without random numbers, an element's update does not depend on the parameter that the element belongs to.
  if (options.state.stochastic_rounding)
    for (const auto& piece : pieces_of(run)) update(piece);
  else
    update({.offset = 0, .numel = run.rows.numel()});
}

}  // namespace fsdp::optim
