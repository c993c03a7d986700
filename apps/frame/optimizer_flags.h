#pragma once
/// \file
/// Defines the flag --optimizer, which all programs that train share.

#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace CLI {
class App;
}
namespace at {
class Tensor;
}
namespace torch::optim {
class Optimizer;
}

namespace frame {

/// Adds the flag --optimizer. `name` is the default and receives the user's choice: "adamw", "adam", "sgd" (with
/// momentum 0.9), "rmsprop", "adagrad", "adadelta", or "cpu_adam", which is Adam for rows in host memory.
void add_optimizer_flags(CLI::App& app, std::string& name);

/// Returns a learning rate that suits this optimizer and small models.
double usual_learning_rate(const std::string& name);

struct ParametersOfOptimizer {
  std::vector<at::Tensor> parameters;
  double weight_decay = 0;
};

/// Returns an optimizer of fsdp::optim, which is also an fsdp::optim::FlatOptimizer. Optimizers without betas ignore
/// `betas`. Throws std::invalid_argument for cpu_adam if a parameter is not on the CPU.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, double lr,
                                                        const std::vector<ParametersOfOptimizer>& groups,
                                                        std::tuple<double, double> betas = {0.9, 0.999});

}  // namespace frame
