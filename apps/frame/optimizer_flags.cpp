#include "frame/optimizer_flags.h"

#include <fsdp/optim.h>

#include <CLI/CLI.hpp>
#include <stdexcept>

namespace frame {
namespace {

using torch::optim::Optimizer;

// Constructs an optimizer of class `Made`. Each param group gets a copy of `options` with its own weight decay.
template <class Made>
std::unique_ptr<Optimizer> make(const std::vector<ParametersOfOptimizer>& groups,
                                const typename Made::Options& options) {
  std::vector<torch::optim::OptimizerParamGroup> param_groups;
  for (const auto& [parameters, weight_decay] : groups) {
    auto own = std::make_unique<typename Made::Options>(options);
    own->weight_decay(weight_decay);
    param_groups.emplace_back(parameters, std::move(own));
  }
  return std::make_unique<Made>(param_groups, options);
}

void require_on_cpu(const std::vector<ParametersOfOptimizer>& groups) {
  for (const auto& group : groups)
    for (const auto& parameter : group.parameters)
      if (!parameter.is_cpu())
        throw std::invalid_argument("--optimizer cpu_adam needs parameters on the CPU, found one on " +
                                    parameter.device().str() +
                                    ". Train on the CPU, add --cpu-offload, or use --optimizer adam");
}

}  // namespace

void add_optimizer_flags(CLI::App& app, std::string& name) {
  app.add_option("--optimizer", name, "The optimizer; cpu_adam is Adam for rows in host memory")
      ->check(CLI::IsMember({"adamw", "adam", "sgd", "rmsprop", "adagrad", "adadelta", "cpu_adam"}))
      ->capture_default_str()
      ->take_last();
}

double usual_learning_rate(const std::string& name) {
  if (name == "adadelta") return 1.0;
  if (name == "sgd") return 0.01;
  return name == "adagrad" ? 0.01 : 0.001;
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, double lr,
                                          const std::vector<ParametersOfOptimizer>& groups,
                                          std::tuple<double, double> betas) {
  if (name == "cpu_adam") require_on_cpu(groups);
  if (name == "adam" || name == "cpu_adam")
    return make<fsdp::optim::Adam>(groups, torch::optim::AdamOptions(lr).betas(betas));
  if (name == "adamw") return make<fsdp::optim::AdamW>(groups, torch::optim::AdamWOptions(lr).betas(betas));
  if (name == "sgd") return make<fsdp::optim::SGD>(groups, torch::optim::SGDOptions(lr).momentum(0.9));
  if (name == "rmsprop") return make<fsdp::optim::RMSprop>(groups, torch::optim::RMSpropOptions(lr));
  if (name == "adagrad") return make<fsdp::optim::Adagrad>(groups, torch::optim::AdagradOptions(lr));
  if (name == "adadelta") return make<fsdp::optim::Adadelta>(groups, fsdp::optim::AdadeltaOptions(lr));
  throw std::invalid_argument("--optimizer " + name + " is not known");
}

}  // namespace frame
