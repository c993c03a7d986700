#include "intercept.h"

#include <fsdp/fully_shard.h>
#include <fsdp/process_group.h>
#include <fsdp/scopes.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "statistics.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

// Width of the tensors. They are small, so that the time of the arithmetic does not hide the library's time.
constexpr int64_t kWidth = 8;

template <class Operator>
double microseconds(const Operator& operate, const at::Tensor& operand, int64_t count) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i) operate(operand);
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / static_cast<double>(count);
}

template <class Operator>
Json compare(const char* name, const InterceptArguments& arguments, const at::Tensor& parameter,
             const at::Tensor& plain, const Operator& operate) {
  microseconds(operate, parameter, arguments.operators);
  microseconds(operate, plain, arguments.operators);
  std::vector<double> plain_us, parameter_us, overhead_us;
  for (int64_t round = 0; round < arguments.rounds; ++round) {
    plain_us.push_back(microseconds(operate, plain, arguments.operators));
    parameter_us.push_back(microseconds(operate, parameter, arguments.operators));
    overhead_us.push_back(parameter_us.back() - plain_us.back());
  }
  return {{"operator", name},
          {"plain_us", round_to(median(plain_us), 3)},
          {"parameter_us", round_to(median(parameter_us), 3)},
          {"overhead_us", round_to(median(overhead_us), 3)}};
}

}  // namespace

void run_intercept(const InterceptArguments& arguments) {
  torch::set_num_threads(1);
  fsdp::init_process_group({.rank = 0, .world_size = 1});
  torch::nn::Linear linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false));
  const auto model = fsdp::fully_shard(linear);
  const auto x = torch::ones({kWidth, kWidth});
  const auto plain = torch::ones({kWidth, kWidth}).requires_grad_();

  Json operators;
  {
    const fsdp::ForwardScope scope(model);
    const auto& weight = linear->weight;
    const auto multiply = [&](const at::Tensor& w) { return w * x; };
    operators.push_back(compare("mul, recorded", arguments, weight, plain, multiply));
    operators.push_back(
        compare("mm, recorded", arguments, weight, plain, [&](const at::Tensor& w) { return torch::mm(x, w); }));
    operators.push_back(compare("maximum, recorded", arguments, weight, plain,
                                [&](const at::Tensor& w) { return torch::maximum(w, x); }));
    operators.push_back(
        compare("select, recorded", arguments, weight, plain, [](const at::Tensor& w) { return w.select(0, 1); }));
    operators.push_back(
        compare("cat, recorded", arguments, weight, plain, [](const at::Tensor& w) { return torch::cat({w, w}); }));
    operators.push_back(compare("aminmax, recorded", arguments, weight, plain,
                                [](const at::Tensor& w) { return std::get<0>(torch::aminmax(w)); }));
    const torch::NoGradGuard no_grad;
    operators.push_back(compare("mul", arguments, weight, plain, multiply));
    operators.push_back(compare("view", arguments, weight, plain, [](const at::Tensor& w) { return w.t(); }));
  }
  double worst = 0;
  for (const auto& entry : operators) worst = std::max(worst, entry["overhead_us"].get<double>());
  std::cout << Json{{"overhead_us", worst}, {"rounds", arguments.rounds}, {"operators", operators}}.dump() << std::endl;
  fsdp::destroy_process_group();
}

}  // namespace bench
