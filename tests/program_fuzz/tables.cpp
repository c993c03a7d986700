#include "program_fuzz/tables.h"

#include <fsdp/optim.h>

#include <algorithm>
#include <stdexcept>

namespace fsdp::test::fuzz {
namespace {

using torch::Tensor;

#define FORMULA(...)                                                                           \
  [](const Tensor& h, [[maybe_unused]] const Operands& p, [[maybe_unused]] const Tensor& mean, \
     [[maybe_unused]] const Call& call) -> Tensor { return __VA_ARGS__; }

// The array is in the order of Cell.
const std::array<CellInfo, kCells> kCellTable{{
    {"sequence", 20, {}, FORMULA(h)},
    {"linear", 30, {{kWidth, kWidth}, {kWidth}}, FORMULA(torch::tanh(torch::linear(h, p[0], p[1])))},
    {"wide", 20, {{kSize, kWidth}, {kWidth, kSize}}, FORMULA(torch::linear(torch::tanh(torch::linear(h, p[0])), p[1]))},
    {"scale", 10, {{}}, FORMULA(h* p[0])},
    {"norm", 10, {{kWidth}, {kWidth}}, FORMULA(torch::layer_norm(h, {h.size(1)}, p[0], p[1]))},
    {"table", 10, {{kSize, kWidth}}, FORMULA(chosen_rows(h, p[0], call))},
    {"function", 10, {{kWidth, kWidth}}, FORMULA(CustomLayer::apply(h, p[0]))},
    {"sometimes", 10, {{kWidth}, {kWidth}}, FORMULA((call.seed + call.rank) % 2 == 0 ? h * p[0] + p[1] : h * p[0])},
    {"unused", 10, {{kSize, kWidth}}, FORMULA(0.1 * h)},
    {"running", 10, {{kWidth}}, FORMULA(less_running_mean(h, mean, call) * p[0])},
    {"pause", 20, {}, FORMULA(0.1 * Pause::apply(h, call))},
    {"large", 4, {{kSize, kWidth}}, FORMULA(h* p[0].square().mean(0))},
    {"adapter",
     10,
     {{kWidth, kWidth}, {kSize, kWidth}, {kWidth, kSize}},
     FORMULA(torch::tanh(torch::linear(h, p[0]) + torch::linear(torch::linear(h, p[1]), p[2])))},
    {"stacked", 5, {{kSize, kDepth, kWidth}}, FORMULA(h* p[0].square().mean({0, 1}))},
}};

#undef FORMULA

template <class Made, class Options>
std::unique_ptr<torch::optim::Optimizer> make(std::vector<Tensor> tensors, const Options& options) {
  return std::make_unique<Made>(std::move(tensors), options);
}

#define OPTIMIZER(Made, Torchs, ...)                                                      \
  #Made, [](std::vector<Tensor> all) { return make<Made>(std::move(all), __VA_ARGS__); }, \
      [](std::vector<Tensor> all) { return make<Torchs>(std::move(all), __VA_ARGS__); }, !std::is_same_v<Made, Torchs>

// The array is in the order of Optimizer.
const std::array<OptimizerInfo, kOptimizers> kOptimizerTable{{
    {OPTIMIZER(torch::optim::SGD, torch::optim::SGD, torch::optim::SGDOptions(0.05).momentum(0.9))},
    {OPTIMIZER(torch::optim::AdamW, torch::optim::AdamW, torch::optim::AdamWOptions(0.01).eps(1e-3))},
    {OPTIMIZER(fsdp::optim::SGD, torch::optim::SGD, torch::optim::SGDOptions(0.05).momentum(0.9))},
    {OPTIMIZER(fsdp::optim::AdamW, torch::optim::AdamW, torch::optim::AdamWOptions(0.01).eps(1e-3))},
    {OPTIMIZER(fsdp::optim::Adam, torch::optim::Adam, torch::optim::AdamOptions(0.01).eps(1e-3))},
    {OPTIMIZER(fsdp::optim::RMSprop, torch::optim::RMSprop, torch::optim::RMSpropOptions(0.01).alpha(0.5).eps(1e-3))},
    {OPTIMIZER(fsdp::optim::Adagrad, torch::optim::Adagrad,
               torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1).eps(1e-3))},
}};

#undef OPTIMIZER

// The number of elements is larger than the padding that a group may have (layout/planes.cpp).
constexpr int64_t kMatrixNumel = 16'400;

constexpr std::array<double, 3> kFactors{0.5, 0.9, -1};

// The array is in the order of Kind.
const std::array<KindInfo, kKinds> kKindTable{{
    {"make", 6, kAtTop},
    {"drop", 3, kExists | kAtTop},
    {"scope", 8, kExists | kNests | kGroup | kNoRows},
    {"no_sync", 5, kExists | kNests},
    {"LocalRows", 6, kOutside | kNests | kNoRows},
    {"forward", 40, kNoRows, 0.7},
    {"evaluate", 12, kNoRows},
    {"autograd::grad", 26, kNothing},
    {"backward", 42, kNothing, 0.3},
    {"forget graph", 2, kNothing},
    {"zero_grad", 6, kExists},
    {"step", 14, kSettled},
    {"GradScaler", 6, kSettled},
    {"write rows", 12, kSettled, 0.5, kFactors},
    {"write one row", 14, kSettled | kRows, 0.5, kFactors},
    {"write from whole", 6, kSettled | kNoRows, 0.5, kFactors},
    {"summon_full_params", 4, kOutside | kNoRows, 0.5, kFactors},
    {"unshard", 4, kExists | kGroup},
    {"reshard", 3, kExists | kGroup},
    {"set_reshard_after_forward", 2, kOutside},
    {"set_reshard_after_backward", 3, kOutside},
    {"set_unshard_in_backward", 2, kOutside | kGroup},
    {"set_all_reduce_hook", 2, kOutside | kGroup, 0.7, {1e-4, 0.01, 0.1}},
    {"set_post_accumulate_grad_hook", 8, kOutside | kAtTop | kGroup, 0.8},
    {"requires_grad_", 3, kSettled | kAtTop | kRows},
    {"set_reduce_scatter_unused_params", 2, kOutside},
    {"set_gradient_divide_factor", 2, kOutside | kGroup, 0.5, {1, 2, 3}},
    {"forward prefetch list", 2, kOutside | kGroup},
    {"backward prefetch list", 2, kOutside | kGroup},
    {"clip_grad_norm_", 4, kSettled, 0.5, {1e-3, 0.1, 100}},
    {"full_tensor", 3, kExists},
    {"save", 2, kOutside},
    {"throw, reset_iter_state", 3, kExists | kAtTop},
    {"barrier", 1, kNothing},
    {"compare rows", 5, kOutside},
    {"compare gradients", 6, kOutside},
    {"all_reduce", 2, kNothing},
    {"all_gather", 2, kNothing},
    {"broadcast", 2, kNothing},
    {"mean", 2, kNothing},
    {"functional collective", 26, kNothing},
    {"attention over ranks", 26, kNothing},
    {"compute with rows by hand", 10, kSettled | kNoRows, 0.5, {1e-3, 0.1, 0.5}},
    {"pipeline", 12, kAtTop, 0.3},
}};

template <class Value>
Value named(const std::string& name, const auto& table) {
  const auto found = std::ranges::find_if(table, [&](const auto& info) { return info.name == name; });
  if (found == table.end()) throw std::invalid_argument("there is no item with the name '" + name + "'");
  return static_cast<Value>(found - table.begin());
}

}  // namespace

const CellInfo& info_of(Cell cell) { return item(kCellTable, cell); }
const OptimizerInfo& info_of(Optimizer optimizer) { return item(kOptimizerTable, optimizer); }
const KindInfo& info_of(Kind kind) { return item(kKindTable, kind); }

Kind kind_named(const std::string& name) { return named<Kind>(name, kKindTable); }
Cell cell_named(const std::string& name) { return named<Cell>(name, kCellTable); }
Optimizer optimizer_named(const std::string& name) { return named<Optimizer>(name, kOptimizerTable); }

std::vector<std::vector<int64_t>> sizes_of(const Program& program, const Node& node) {
  std::vector<std::vector<int64_t>> all;
  for (const auto& sizes : info_of(node.cell).sizes) {
    auto& one = all.emplace_back();
    for (int size : sizes)
      one.push_back(size == kWidth ? program.width : size == kSize ? node.size : kMatrixNumel / program.width + 1);
  }
  return all;
}

}  // namespace fsdp::test::fuzz
