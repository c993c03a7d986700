#pragma once
/// \file
/// Executes a program.

#include <fsdp/device_mesh.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "program_fuzz/net.h"
#include "program_fuzz/tables.h"
#include "program_fuzz/values.h"

namespace fsdp::test::fuzz {

/// Errors that are planted to check that they are found.
enum class Plant : uint8_t {
  kNothing,
  kGradient,  ///< rank 1 adds a thousandth to the gradients that it records
  kSkip,      ///< the unsharded run leaves out the effects of optimizers and writes
};

/// Callbacks of a rank that runs, called in the order of execution.
struct Watch {
  /// Called before a statement.
  std::function<void(const Statement&)> begins;
  /// Called where the statement's lag has to take place.
  std::function<void(const Lag&)> lags;
};

/// Meshes of all ranks of the default process group, each made once; keyed by the number of ranks along "shard".
using Meshes = std::map<int, DeviceMesh>;

/// Runs the program on this rank of the default process group. Collective. Throws the library's errors that the program
/// does not expect.
std::vector<Value> run_sharded(const Program& program, int rank, const Watch& watch, Plant plant, Meshes& meshes);

/// The values of every rank, computed by one unsharded model for each rank. Gradients of a backward are summed in rank
/// order and multiplied by 1/divisor once, as the library promises, so they have the same bits.
std::vector<Value> run_unsharded(const Program& program, Plant plant);

struct Graph {
  torch::Tensor x = {}, h = {}, y = {};
  uint32_t models = 0;  // as bits
};

/// What one rank has and does on its own, sharded or not.
class Rank {
 public:
  Rank(const Program& program, int its_number) : number(its_number), program_(program) {}

  struct OfModel {
    std::unique_ptr<Net> net;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    /// Keyed by the node of the group that the optimizer steps in backward.
    std::map<int, std::unique_ptr<torch::optim::Optimizer>> steppers;
  };

  void forward(const Statement& statement);
  /// Of a kMap or kAttend, which made `h` of the other graph's.
  void follow(const Statement& statement, const torch::Tensor& h);
  /// What a kGrad takes gradients of.
  std::vector<torch::Tensor> inputs_of_grad(const Statement& statement);
  void take_gradients(const Statement& statement, std::span<const torch::Tensor> gradients);
  /// Of the leaves that a backward's graphs begin with.
  void record_input_gradients(const Statement& statement);
  torch::Tensor loss_that_throws(const Statement& statement, bool throws);
  /// Whether a parameter that is not ignored has a gradient.
  bool has_gradients(const Statement& statement);

  /// The input of a forward. all_reduce and similar statements also use it, because it differs between ranks.
  torch::Tensor input(const Statement& s) const { return input_of({program_.samples, program_.width}, call(s)); }
  Call call(const Statement& s) const { return {number, s.seed, /*updates_buffers=*/true, &pause}; }
  Graph& graph(int slot) { return item(graphs, slot); }
  OfModel& of(const Statement& s) { return item(models, s.model); }
  Net& net(const Statement& s) { return *of(s).net; }
  NodeModule& module(const Statement& s) { return *item(net(s).modules, s.node); }
  /// The parameter that kWriteOneRow writes.
  torch::Tensor row_parameter(const Statement& s) { return module(s).parameters(/*recurse=*/false)[0]; }
  void record(const Statement& statement, Value value);
  void record(const Statement& statement, const torch::Tensor& tensor) { record(statement, value_of(tensor)); }
  /// Records the rows of a parameter, or of its gradient, that the rank has.
  void record_rows(const Statement& statement, const NetParameter& parameter, const torch::Tensor& rows);

  const int number;
  std::array<OfModel, kModels> models;
  std::array<Graph, kSlots> graphs;
  std::vector<Value> values;
  std::function<void()> pause;  // called in the backward of a kPause
  /// How a forward calls the module of its node.
  std::function<torch::Tensor(const Statement&, const torch::Tensor& x, const Call&)> apply =
      [this](const Statement& s, const torch::Tensor& x, const Call& call) { return module(s).forward(x, call); };

 private:
  const Program& program_;
};

/// What the two runs have in common. The sharded run has one rank; the unsharded run has all of them.
class Run {
 public:
  virtual ~Run() = default;
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  /// Executes the program, and records rows and gradients at its end.
  std::vector<Value> run();

 protected:
  Run(const Program& program, Plant plant, bool is_sharded)
      : program_(program), plant_(plant), is_sharded_(is_sharded) {}

  struct ModelState {
    std::vector<int> scopes;  // nodes of the groups whose scopes are open
    bool has_local_rows = false;
    double tolerance = 0;  // how far its numbers may differ from the sharded run's
  };
  ModelState& state(const Statement& s) { return item(states_, s.model); }
  /// The group whose scope a kScope or a forward opens; -1 if a scope around its module is open.
  int scope_of(const Statement& statement);

  /// Called before each statement.
  virtual void begin(const Statement&) {}
  /// Runs `body` inside what the statement opens: a scope, a LocalRows, and so on.
  virtual void within(const Statement& statement, const std::function<void()>& body) = 0;
  /// Executes what the two runs do differently, or only one of them does.
  virtual void execute_otherwise(const Statement& statement) = 0;
  virtual void made(const Statement& statement) = 0;
  /// What a kMap or kAttend makes of the h of each of `ranks_`.
  virtual std::vector<torch::Tensor> exchanged(const Statement& statement) = 0;
  /// Runs only autograd's part of a backward, which leaves parameters' gradients as autograd does.
  void run_backward(const Statement& statement);
  virtual void will_drop(const Statement&) {}

  std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Statement& s, std::vector<torch::Tensor> tensors);
  /// Runs a statement on every rank. Its values must have the same bits as the other run's, unless one of the models
  /// (bits) that it depends on was rounded differently.
  void on_ranks(uint32_t models, const std::function<void(Rank&)>& run);
  double tolerance_of_all(uint32_t models) const;
  uint32_t models_of(const Statement& statement);
  void note_rounding(const Statement& s, double tolerance) {
    state(s).tolerance = std::max(state(s).tolerance, tolerance);
  }
  void note_rounding_of_step(const Statement& statement);
  bool skips_writes() const { return plant_ == Plant::kSkip && !is_sharded_; }

  const Program& program_;
  const Plant plant_;
  const bool is_sharded_;
  std::vector<std::unique_ptr<Rank>> ranks_;

 private:
  void run_list(const std::vector<Statement>& statements);
  void run_body(const Statement& statement) {
    within(statement, [&] { run_list(statement.body); });
  }
  void execute(const Statement& statement);
  void exchange(const Statement& statement);
  void grad(const Statement& statement);
  void by_hand(Rank& rank, const Statement& statement);
  void write_one_row(Rank& rank, const Statement& statement);
  void summon(Rank& rank, const Statement& statement);
  void save(Rank& rank, const Statement& statement);
  void compare_rows(Rank& rank, const Statement& statement);
  void compare_gradients(Rank& rank, const Statement& statement);

  std::array<ModelState, kModels> states_;
};

/// The number that a rank passes to mean().
inline double first_of(const torch::Tensor& numbers) { return numbers.flatten()[0].item<double>(); }
/// The row that a statement writes in a parameter of these whole sizes.
inline int64_t row_of(const Statement& s, at::IntArrayRef sizes) { return sizes.empty() ? 0 : s.seed % sizes[0]; }
/// The tolerance for numbers that are computed from the same inputs in another order.
double tolerance_of(const Model& model);

}  // namespace fsdp::test::fuzz
