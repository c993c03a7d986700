#pragma once
/// \file
/// Executes a program, sharded or unsharded.

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

/// Errors that can be planted, to check that the fuzzer finds them.
enum class Plant : uint8_t {
  kNothing,
  kGradient,  ///< rank 1 adds a thousandth to the gradients that it records
  kSkip,      ///< the unsharded run skips optimizer steps and writes
};

/// Callbacks of a rank that runs the program.
struct Watch {
  /// Called before each statement.
  std::function<void(const Statement&)> begins;
  /// Called where the rank may have to wait because of the statement's lag.
  std::function<void(const Lag&)> lags;
};

/// Meshes over all ranks of the default process group, keyed by the number of ranks along "shard". Each mesh is made
/// once.
using Meshes = std::map<int, DeviceMesh>;

/// Runs the program on this rank of the default process group, and returns its values. Collective. Throws errors of the
/// library that the program does not expect.
std::vector<Value> run_sharded(const Program& program, int rank, const Watch& watch, Plant plant, Meshes& meshes);

/// Returns the values of every rank, computed by one unsharded model per rank. Gradients of a backward are summed in
/// rank order and multiplied by 1/divisor once, as the library promises, so they have the same bits.
std::vector<Value> run_unsharded(const Program& program, Plant plant);

struct Graph {
  torch::Tensor x = {}, h = {}, y = {};
  uint32_t models = 0;  // one bit for each model
};

/// State and operations of one rank, in the sharded and in the unsharded run.
class Rank {
 public:
  Rank(const Program& program, int its_number) : number(its_number), program_(program) {}

  struct OfModel {
    std::unique_ptr<Net> net;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    /// Optimizers that step in backward, keyed by the node of their group.
    std::map<int, std::unique_ptr<torch::optim::Optimizer>> steppers;
  };

  void forward(const Statement& statement);
  /// Continues a graph after a kMap or kAttend has computed `h` from the other graph's h.
  void follow(const Statement& statement, const torch::Tensor& h);
  /// Returns the tensors for which a kGrad takes gradients.
  std::vector<torch::Tensor> inputs_of_grad(const Statement& statement);
  void take_gradients(const Statement& statement, std::span<const torch::Tensor> gradients);
  /// Records the gradients of the leaves that are the inputs of a backward's graphs.
  void record_input_gradients(const Statement& statement);
  torch::Tensor loss_that_throws(const Statement& statement, bool throws);
  /// Returns true if a parameter that is not ignored has a gradient.
  bool has_gradients(const Statement& statement);

  /// Returns the input of a forward. all_reduce and similar statements use it too, because it differs between ranks.
  torch::Tensor input(const Statement& s) const { return input_of({program_.samples, program_.width}, call(s)); }
  Call call(const Statement& s) const { return {number, s.seed, /*updates_buffers=*/true, &pause}; }
  Graph& graph(int slot) { return item(graphs, slot); }
  OfModel& of(const Statement& s) { return item(models, s.model); }
  Net& net(const Statement& s) { return *of(s).net; }
  NodeModule& module(const Statement& s) { return *item(net(s).modules, s.node); }
  /// Returns the parameter that kWriteOneRow writes.
  torch::Tensor row_parameter(const Statement& s) { return module(s).parameters(/*recurse=*/false)[0]; }
  void record(const Statement& statement, Value value);
  void record(const Statement& statement, const torch::Tensor& tensor) { record(statement, value_of(tensor)); }
  /// Records this rank's rows of a parameter or of its gradient.
  void record_rows(const Statement& statement, const NetParameter& parameter, const torch::Tensor& rows);

  const int number;
  std::array<OfModel, kModels> models;
  std::array<Graph, kSlots> graphs;
  std::vector<Value> values;
  std::function<void()> pause;  // called in the backward of a kPause
  /// Calls the module of a forward's node.
  std::function<torch::Tensor(const Statement&, const torch::Tensor& x, const Call&)> apply =
      [this](const Statement& s, const torch::Tensor& x, const Call& call) { return module(s).forward(x, call); };

 private:
  const Program& program_;
};

/// Base class of the sharded and the unsharded run. `ranks_` has one rank in the sharded run, and all of them in the
/// unsharded one.
class Run {
 public:
  virtual ~Run() = default;
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  /// Executes the program, records rows and gradients at its end, and returns all recorded values.
  std::vector<Value> run();

 protected:
  Run(const Program& program, Plant plant, bool is_sharded)
      : program_(program), plant_(plant), is_sharded_(is_sharded) {}

  struct ModelState {
    std::vector<int> scopes;  // nodes of the groups whose scopes are open
    bool has_local_rows = false;
    double tolerance = 0;  // relative difference that is allowed between the numbers of the two runs
  };
  ModelState& state(const Statement& s) { return item(states_, s.model); }
  /// Returns the node of the group whose scope a kScope or a forward opens, or -1 if a scope around its module is open.
  int scope_of(const Statement& statement);

  /// Called before each statement.
  virtual void begin(const Statement&) {}
  /// Runs `body` inside the scope, LocalRows or other guard that the statement opens.
  virtual void within(const Statement& statement, const std::function<void()>& body) = 0;
  /// Executes statements that the two runs execute differently, or that only one of them can execute.
  virtual void execute_otherwise(const Statement& statement) = 0;
  virtual void made(const Statement& statement) = 0;
  /// Returns what a kMap or kAttend computes from the h of each rank in `ranks_`.
  virtual std::vector<torch::Tensor> exchanged(const Statement& statement) = 0;
  /// Runs autograd's part of a backward only. Parameters then have the gradients that autograd gave them.
  void run_backward(const Statement& statement);
  virtual void will_drop(const Statement&) {}

  std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Statement& s, std::vector<torch::Tensor> tensors);
  /// Runs a statement on every rank. Its values must have the same bits as those of the other run, unless one of
  /// `models` (one bit each) has been rounded differently.
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

/// Returns the number that a rank passes to mean().
inline double first_of(const torch::Tensor& numbers) { return numbers.flatten()[0].item<double>(); }
/// Returns the row that a statement writes, in a parameter with these whole sizes.
inline int64_t row_of(const Statement& s, at::IntArrayRef sizes) { return sizes.empty() ? 0 : s.seed % sizes[0]; }
/// Returns the tolerance for numbers that are computed from the same inputs in another order.
double tolerance_of(const Model& model);

}  // namespace fsdp::test::fuzz
