#include "program_fuzz/tables.h"

#include <fsdp/optim.h>

namespace fsdp::test::fuzz {
namespace {

using torch::Tensor;

#define FORMULA(...)                                                                           \
  [](const Tensor& h, [[maybe_unused]] const Operands& p, [[maybe_unused]] const Tensor& mean, \
     [[maybe_unused]] const Call& call) -> Tensor { return __VA_ARGS__; },                     \
      #__VA_ARGS__

// The rows stand in the order of Cell.
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
}};

#undef FORMULA

template <class Made, class Options>
std::unique_ptr<torch::optim::Optimizer> make(std::vector<Tensor> tensors, const Options& options) {
  return std::make_unique<Made>(std::move(tensors), options);
}

#define OPTIMIZER(Made, Torchs, ...)                                                                    \
  #Made, #__VA_ARGS__, [](std::vector<Tensor> all) { return make<Made>(std::move(all), __VA_ARGS__); }, \
      [](std::vector<Tensor> all) { return make<Torchs>(std::move(all), __VA_ARGS__); }, !std::is_same_v<Made, Torchs>

// In the order of Optimizer.
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

constexpr std::array<double, 3> kFactors{0.5, 0.9, -1};

// In the order of Kind.
const std::array<KindInfo, kKinds> kKindTable{{
    {"make", 6, kAtTop, ""},
    {"drop", 3, kExists | kAtTop, "// $M, its handle and $O go"},
    {"scope", 8, kExists | kNests | kGroup | kNoRows,
     "{\n  fsdp::ForwardScope scope($G);\n$L\n$B\n@(  scope.close();|)@\n}"},
    {"no_sync", 5, kExists | kNests, "{\n  auto no_sync = $R.no_sync();\n$L\n$B\n}"},
    {"LocalRows", 6, kOutside | kNests | kNoRows, "{\n  fsdp::LocalRows rows($R);\n$L\n$B\n}"},
    {"forward", 40, kNoRows,
     "{\n  $E\n$L\n  x[$a] = $x;\n  h[$a] = $c(x[$a], Call{rank, $s});\n"
     "  y[$a] = h[$a].square().mean();  // compared\n}",
     0.7},
    {"evaluate", 12, kNoRows,
     "{\n  $E\n  torch::NoGradGuard no_grad;\n$L\n  $c(input($s), Call{rank, $s});  // compared\n}"},
    {"autograd::grad", 26, kNothing, "$L\n$g"},
    {"backward", 42, kNothing, "$L\n$y.backward(@({}, /*retain_graph=*/true|)@);", 0.3},
    {"forget graph", 2, kNothing, "x[$a] = h[$a] = y[$a] = {};"},
    {"zero_grad", 6, kExists, "$O.zero_grad($f);"},
    {"step", 14, kSettled, "$O.step();"},
    {"GradScaler", 6, kSettled,
     "{  // if a parameter that is not ignored has a gradient\n"
     "  scaler_of_$M.scale(torch::ones({}));\n"
     "  for (auto& p : $R.parameters())\n"
     "    if (p.grad().defined()) p.mutable_grad().mul_(scaler_of_$M.get_scale());\n"
     "@(  // the rank that has row $s % its rows of the gradient of $N->p[0] fills what it has of it with INFINITY|)@\n"
     "  scaler_of_$M.step($O);\n"
     "  scaler_of_$M.update();\n"
     "  $O.zero_grad();\n}"},
    {"write rows", 12, kSettled,
     "{\n  torch::NoGradGuard no_grad;\n@(  fsdp::LocalRows rows($R);|)@\n$L\n"
     "  for (auto& p : $R.parameters()) p.mul_($v);\n}",
     0.5, kFactors},
    {"write one row", 14, kSettled | kRows,
     "{\n  torch::NoGradGuard no_grad;\n  auto p = $N->p[0];\n  const auto [first, count] = fsdp::local_rows(p);\n"
     "  const int64_t row = $s % (p.dim() == 0 ? 1 : fsdp::global_sizes(p)[0]) - first;\n"
     "  if (row >= 0 && row < count) {  // under a LocalRows, unless one of all ranks is open\n"
     "    fsdp::LocalRows rows($R);\n$L\n"
     "    (p.dim() == 0 ? p : p[row]).mul_($v);@(  // through its data_ptr()|)@\n  }\n}",
     0.5, kFactors},
    {"write from whole", 6, kSettled | kNoRows,
     "{\n  torch::NoGradGuard no_grad;\n  for (auto& p : $R.parameters())\n"
     "    p.@(copy_|mul_)@(whole_operand(fsdp::global_sizes(p), $v, p.scalar_type()));\n}",
     0.5, kFactors},
    {"summon_full_params", 4, kOutside | kNoRows,
     "{\n  torch::NoGradGuard no_grad;\n  auto whole = fsdp::summon_full_params($R);\n$L\n"
     "  for (auto& p : $R.parameters()) p@(.mul_($v)| * 1.0)@;  // compared before\n@(  whole.write_back();|)@\n}",
     0.5, kFactors},
    {"unshard", 4, kExists | kGroup, "$G.unshard()@(.wait()|)@;"},
    {"reshard", 3, kExists | kGroup, "$G.reshard();"},
    {"set_reshard_after_forward", 2, kOutside, "$R.set_reshard_after_forward($F);"},
    {"set_reshard_after_backward", 3, kOutside, "$R.set_reshard_after_backward($F);"},
    {"set_unshard_in_backward", 2, kOutside | kGroup, "$G.set_unshard_in_backward($F);"},
    {"set_all_reduce_hook",
     2,
     kOutside | kGroup,
     "$G.set_all_reduce_hook(@([](torch::Tensor rows) { rows.clamp_(-$v, $v); }|{})@);",
     0.7,
     {1e-4, 0.01, 0.1}},
    {"set_post_accumulate_grad_hook", 8, kOutside | kAtTop | kGroup,
     "$O.zero_grad();\n"
     "@($t\n|)@$G.set_post_accumulate_grad_hook("
     "@([&](const auto&) { stepper_of_n$n.step(); stepper_of_n$n.zero_grad(); }|{})@);",
     0.8},
    {"requires_grad_", 3, kSettled | kAtTop | kRows, "for (auto& p : $N->parameters(false)) p.set_requires_grad($F);"},
    {"set_reduce_scatter_unused_params", 2, kOutside, "$R.set_reduce_scatter_unused_params($f);"},
    {"set_gradient_divide_factor", 2, kOutside | kGroup, "$G.set_gradient_divide_factor($v);", 0.5, {1, 2, 3}},
    {"forward prefetch list", 2, kOutside | kGroup, "$G.set_modules_to_forward_prefetch({$p});"},
    {"backward prefetch list", 2, kOutside | kGroup, "$G.set_modules_to_backward_prefetch({$p});"},
    {"clip_grad_norm_", 4, kSettled, "fsdp::clip_grad_norm_($R, $v);  // compared", 0.5, {1e-3, 0.1, 100}},
    {"full_tensor", 3, kExists, "for (auto& p : $R.parameters()) fsdp::full_tensor(p);  // compared"},
    {"save", 2, kOutside,
     "{\n  std::stringstream file;\n  torch::save($R.parameters(), file);  // loaded, and compared\n}"},
    {"throw, reset_iter_state", 3, kExists | kAtTop,
     "try {\n  torch::Tensor loss;\n  {\n    fsdp::ForwardScope scope($R);\n$L\n"
     "    loss = $M->forward(input($s).requires_grad_(), Call{rank, $s, false}).square().mean();\n"
     "@(|    // here $w throws)@\n  }\n"
     "  loss.backward();@(  // in a hook on the output of $N $w throws|)@\n"
     "} catch (const std::runtime_error&) {  // a Mismatch on ranks that do not throw\n}\n"
     "$R.reset_iter_state();\n$O.zero_grad();"},
    {"barrier", 1, kNothing, "fsdp::barrier();"},
    {"compare rows", 5, kOutside, "// compared: rows of $M"},
    {"compare gradients", 6, kOutside, "// compared: gradients of $M"},
    {"all_reduce", 2, kNothing, "fsdp::all_reduce(input($s)@(, fsdp::ReduceOp::kMax|)@);  // compared"},
    {"all_gather", 2, kNothing, "fsdp::all_gather(input($s));  // compared"},
    {"broadcast", 2, kNothing, "fsdp::broadcast(input($s), $k);  // compared"},
    {"mean", 2, kNothing, "fsdp::mean(input($s)[0][0].item<double>());  // compared"},
}};

}  // namespace

const CellInfo& info_of(Cell cell) { return kCellTable[static_cast<size_t>(cell)]; }
const OptimizerInfo& info_of(Optimizer optimizer) { return kOptimizerTable[static_cast<size_t>(optimizer)]; }
const KindInfo& info_of(Kind kind) { return kKindTable[static_cast<size_t>(kind)]; }

std::vector<std::vector<int64_t>> sizes_of(const Program& program, const Node& node) {
  std::vector<std::vector<int64_t>> all;
  for (const auto& sizes : info_of(node.cell).sizes) {
    auto& one = all.emplace_back();
    for (int size : sizes) one.push_back(size == kWidth ? program.width : node.size);
  }
  return all;
}

}  // namespace fsdp::test::fuzz
