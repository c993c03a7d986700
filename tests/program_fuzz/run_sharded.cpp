#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>

#include "api/group_view.h"
#include "program_fuzz/run.h"
#include "program_fuzz/runner.h"

namespace fsdp::test::fuzz {
namespace {

using torch::Tensor;

std::optional<Reshard> option_of(const Node& node) {
  switch (node.reshard) {
    case WhenToReshard::kUnset:
      return std::nullopt;
    case WhenToReshard::kAlways:
      return Reshard::always();
    case WhenToReshard::kNever:
      return Reshard::never();
    case WhenToReshard::kWithin:
      return Reshard::within(node.neighbours);
  }
  return std::nullopt;
}

using GroupsMade = std::vector<std::weak_ptr<runtime::ParamGroup>>;

class ShardedRun {
 public:
  ShardedRun(const Program& program, int rank, const Watch& watch, Plant plant, Meshes& meshes, GroupsMade& groups_made)
      : program_(program),
        watch_(watch),
        plant_(plant),
        meshes_(meshes),
        groups_made_(groups_made),
        runner_(program, rank) {
    runner_.pause = [this] {
      if (current_ != nullptr && current_->lag.inside) watch_.lags(current_->lag);
    };
    runner_.apply = [this](const Statement& s, const Tensor& x, const Call& call) { return apply(s, x, call); };
  }

  std::vector<Value> run() {
    run_list(program_.statements);
    for (int model = 0; model < kModels; ++model) {
      if (!handle(model).group) continue;
      const Statement end{.model = model, .number = program_end()};
      compare_rows(end);
      compare_gradients(end);
    }
    return std::move(runner_.values);
  }

 private:
  struct Handle {
    std::optional<Sharded<std::shared_ptr<NodeModule>>> group;
    std::map<int, Group> by_node;  // of calls: a group without parameters lives as long as its handle
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    GradScaler scaler = GradScaler({.init_scale = 1024});
    std::map<int, std::unique_ptr<torch::optim::Optimizer>>
        steppers;             // by node of the group that they step in backward
    std::vector<int> scopes;  // nodes of their groups
    bool has_local_rows = false;
  };
  Handle& handle(int model) { return handles_[static_cast<size_t>(model)]; }
  const Group& group(const Statement& s) { return *handle(s.model).group; }
  int program_end() const { return static_cast<int>(in_order(program_).size()); }
  // The group of one node.
  Group group_at(const Statement& s, int node) {
    const auto made = handle(s.model).by_node.find(node);
    if (made != handle(s.model).by_node.end()) return made->second;
    return group_of(*runner_.net(s.model).modules[static_cast<size_t>(node)]);
  }

  void run_list(const std::vector<Statement>& statements) {
    for (const auto& statement : statements) {
      watch_.begins(statement);
      if (!statement.lag.inside) watch_.lags(statement.lag);
      current_ = &statement;
      execute(statement);
    }
  }

  void execute(const Statement& s);
  void make(const Statement& s);
  void shard(Net& net, const Model& model, Handle& handle);
  void drop(const Statement& s);
  void scope(const Statement& s);
  void forward(const Statement& s);
  Tensor apply(const Statement& s, const Tensor& x, const Call& call);
  void scaled_step(const Statement& s);
  void write_rows(const Statement& s);
  void open_local_rows(const Statement& s);
  void write_one_row(const Statement& s);
  void summon(const Statement& s);
  void set_prefetch(const Statement& s);
  void full_tensors(const Statement& s);
  void step_in_backward(const Statement& s);
  void save(const Statement& s);
  void throw_and_reset(const Statement& s);
  void compare_rows(const Statement& s);
  void compare_gradients(const Statement& s);
  void record_rows(const Statement& s, const NetParameter& parameter, const Tensor& rows);

  const Program& program_;
  const Watch& watch_;
  const Plant plant_;
  Meshes& meshes_;
  GroupsMade& groups_made_;
  const Statement* current_ = nullptr;
  Runner runner_;
  std::array<Handle, kModels> handles_;
};

void ShardedRun::execute(const Statement& s) {
  switch (s.kind) {
    case Kind::kMake:
      return make(s);
    case Kind::kDrop:
      return drop(s);
    case Kind::kScope:
      return scope(s);
    case Kind::kNoSync: {
      const auto guard = group(s).no_sync();
      return run_list(s.body);
    }
    case Kind::kLocalRows:
      return open_local_rows(s);
    case Kind::kForward:
    case Kind::kEvaluate:
      return forward(s);
    case Kind::kGrad:
      return runner_.grad(s);
    case Kind::kBackward:
      return runner_.backward(s);
    case Kind::kForget:
      runner_.graph(s.slot) = {};
      return;
    case Kind::kZeroGrad:
      return handle(s.model).optimizer->zero_grad(s.flag);
    case Kind::kStep:
      handle(s.model).optimizer->step();
      return;
    case Kind::kScaledStep:
      return scaled_step(s);
    case Kind::kWriteRows:
      return write_rows(s);
    case Kind::kWriteOneRow:
      return write_one_row(s);
    case Kind::kWriteWhole:
      for (const auto& tensor : runner_.net(s.model).tensors())
        write_whole(s, tensor, whole_operand(s, global_sizes(tensor), tensor));
      return;
    case Kind::kSummon:
      return summon(s);
    case Kind::kUnshard: {
      auto pending = group_at(s, s.node).unshard();
      if (s.flag) pending.wait();
      return;
    }
    case Kind::kReshard:
      return group_at(s, s.node).reshard();
    case Kind::kKeepAfterForward:
      return group(s).set_reshard_after_forward(!s.flag);
    case Kind::kKeepAfterBackward:
      return group(s).set_reshard_after_backward(!s.flag);
    case Kind::kKeepInBackward:
      return group_at(s, s.node).set_unshard_in_backward(!s.flag);
    case Kind::kClampReduced:
      if (!s.flag) return group_at(s, s.node).set_all_reduce_hook({});
      return group_at(s, s.node).set_all_reduce_hook(
          [most = s.value](const Tensor& rows) { Tensor(rows).clamp_(-most, most); });
    case Kind::kStepInBackward:
      return step_in_backward(s);
    case Kind::kFreeze:
      return runner_.freeze(s);
    case Kind::kReduceUnused:
      return group(s).set_reduce_scatter_unused_params(s.flag);
    case Kind::kDivideFactor:
      return group_at(s, s.node).set_gradient_divide_factor(s.value);
    case Kind::kForwardPrefetch:
    case Kind::kBackwardPrefetch:
      return set_prefetch(s);
    case Kind::kClip: {
      const double norm = clip_grad_norm_(group(s), s.value);
      return runner_.record(s, torch::scalar_tensor(norm, torch::kDouble));
    }
    case Kind::kFullTensors:
      return full_tensors(s);
    case Kind::kSave:
      return save(s);
    case Kind::kThrow:
      return throw_and_reset(s);
    case Kind::kBarrier:
      return barrier();
    case Kind::kCompareRows:
      return compare_rows(s);
    case Kind::kCompareGradients:
      return compare_gradients(s);
    case Kind::kAllReduce:
      return runner_.record(s, all_reduce(runner_.numbers(s), s.flag ? ReduceOp::kMax : ReduceOp::kSum));
    case Kind::kAllGather:
      return runner_.record(s, all_gather(runner_.numbers(s)));
    case Kind::kBroadcast:
      return runner_.record(s, broadcast(runner_.numbers(s), s.rank));
    case Kind::kMean:
      return runner_.record(s, torch::scalar_tensor(mean(first_of(runner_.numbers(s))), torch::kDouble));
  }
}

void ShardedRun::make(const Statement& s) {
  const auto& model = program_.models[static_cast<size_t>(s.model)];
  auto& net = runner_.nets[static_cast<size_t>(s.model)];
  net = std::make_unique<Net>(program_, model, /*recomputes=*/true);
  if (model.is_synced) net->begin_apart(runner_.rank);
  shard(*net, model, handle(s.model));
  for (const auto& made : param_groups(*handle(s.model).group)) groups_made_.push_back(made);
  handle(s.model).optimizer = make_optimizer(model.optimizer, /*fused=*/true, net->tensors());
}

void ShardedRun::shard(Net& net, const Model& model, Handle& handle) {
  FullyShardOptions options{.ignored_params = net.ignored_below(0), .sync_module_states = model.is_synced};
  if (model.is_mixed)
    options.mp_policy = MixedPrecisionPolicy{
        .param_dtype = torch::kFloat, .reduce_dtype = torch::kDouble, .cast_forward_inputs = false};
  if (model.host_limit_bytes >= 0)
    options.disk_policy = DiskOffloadPolicy{std::filesystem::temp_directory_path(), model.host_limit_bytes};
  const auto choose = [&](const Node& node) {
    options.strategy = node.strategy;
    options.mesh = node.shards == 0 ? std::nullopt : std::optional(meshes_.with(node.shards));
    options.reshard_after_forward = option_of(node);
  };
  if (model.by_policy) {
    choose(model.nodes[0]);
    options.auto_wrap_policy = [&](const WrapCandidate& candidate) {
      for (size_t node = 1; node < net.modules.size(); ++node)
        if (net.modules[node].get() == &candidate.module && model.nodes[node].is_group) return true;
      return false;
    };
    handle.group = fully_shard(net.modules[0], options);
    return;
  }
  for (int node : net.group_nodes) {
    options.ignored_params = net.ignored_below(node);
    choose(model.nodes[static_cast<size_t>(node)]);
    handle.group = fully_shard(net.modules[static_cast<size_t>(node)], options);
    handle.by_node.emplace(node, *handle.group);
  }
}

void ShardedRun::drop(const Statement& s) {
  for (const auto& [node, stepper] : handle(s.model).steppers) group_at(s, node).set_post_accumulate_grad_hook({});
  handle(s.model) = {};
  runner_.nets[static_cast<size_t>(s.model)].reset();
}

void ShardedRun::scope(const Statement& s) {
  ForwardScope scope(group_at(s, s.node));
  handle(s.model).scopes.push_back(s.node);
  if (s.lag.inside) watch_.lags(s.lag);
  run_list(s.body);
  handle(s.model).scopes.pop_back();
  if (s.flag) scope.close();
}

void ShardedRun::forward(const Statement& s) {
  const auto& model = program_.models[static_cast<size_t>(s.model)];
  const auto covers = [&](int at) { return is_within(model, s.node, at); };
  std::optional<ForwardScope> own;
  if (s.entry == Entry::kScope && std::ranges::none_of(handle(s.model).scopes, covers)) own.emplace(group_at(s, s.at));
  if (s.lag.inside) watch_.lags(s.lag);
  s.kind == Kind::kForward ? runner_.forward(s) : runner_.evaluate(s);
}

Tensor ShardedRun::apply(const Statement& s, const Tensor& x, const Call& call) {
  auto& module = runner_.module(s);
  if (s.entry == Entry::kScope) return module.forward(x, call);
  if (s.node != 0 || s.entry == Entry::kHandleOf) return handle_of(module)(x, call);
  auto& model = *handle(s.model).group;
  return s.entry == Entry::kCall ? model(x, call) : model.forward(x, call);
}

void ShardedRun::scaled_step(const Statement& s) {
  const torch::NoGradGuard no_grad;
  if (!runner_.has_gradients(s)) return;
  auto& scaler = handle(s.model).scaler;
  auto& optimizer = *handle(s.model).optimizer;
  scaler.scale(torch::ones({}));
  for (auto& tensor : runner_.net(s.model).tensors())
    if (tensor.grad().defined()) tensor.mutable_grad().mul_(scaler.get_scale());
  if (s.flag) {
    auto tensor = runner_.row_parameter(s);
    const auto held = local_rows(tensor);
    const int64_t row = row_of(s, global_sizes(tensor)) - held.first;
    if (tensor.grad().defined() && row >= 0 && row < held.count) tensor.mutable_grad().fill_(INFINITY);
  }
  scaler.step(optimizer);
  scaler.update();
  optimizer.zero_grad();
}

void ShardedRun::write_rows(const Statement& s) {
  const torch::NoGradGuard no_grad;
  std::optional<LocalRows> rows;
  if (s.flag) rows.emplace(group(s));
  for (auto& tensor : runner_.net(s.model).tensors()) tensor.mul_(s.value);
}

void ShardedRun::open_local_rows(const Statement& s) {
  const LocalRows rows(group(s));
  handle(s.model).has_local_rows = true;
  if (s.lag.inside) watch_.lags(s.lag);
  run_list(s.body);
  handle(s.model).has_local_rows = false;
}

void ShardedRun::write_one_row(const Statement& s) {
  const torch::NoGradGuard no_grad;
  auto tensor = runner_.row_parameter(s);
  const auto held = local_rows(tensor);
  const int64_t row = row_of(s, global_sizes(tensor)) - held.first;
  if (row < 0 || row >= held.count) return;
  std::optional<LocalRows> own;
  if (!handle(s.model).has_local_rows) own.emplace(group(s));
  if (s.lag.inside) watch_.lags(s.lag);
  auto written = tensor.dim() == 0 ? tensor : tensor[row];
  if (s.flag) written = torch::from_blob(written.mutable_data_ptr(), written.sizes(), tensor.scalar_type());
  written.mul_(s.value);
}

void ShardedRun::summon(const Statement& s) {
  const torch::NoGradGuard no_grad;
  auto whole = summon_full_params(group(s));
  for (const auto& parameter : runner_.net(s.model).parameters) {
    if (parameter.is_ignored) continue;
    runner_.record(s, parameter.tensor * 1.0);
    auto tensor = parameter.tensor;
    if (s.flag) tensor.mul_(s.value);
  }
  if (s.flag) whole.write_back();
}

void ShardedRun::set_prefetch(const Statement& s) {
  std::vector<Group> others;
  for (int node : s.nodes) others.push_back(group_at(s, node));
  s.kind == Kind::kForwardPrefetch ? group_at(s, s.node).set_modules_to_forward_prefetch(others)
                                   : group_at(s, s.node).set_modules_to_backward_prefetch(others);
}

void ShardedRun::full_tensors(const Statement& s) {
  for (const auto& parameter : runner_.net(s.model).parameters) runner_.record(s, full_tensor(parameter.tensor));
}

void ShardedRun::step_in_backward(const Statement& s) {
  auto& steppers = handle(s.model).steppers;
  const auto group = group_at(s, s.node);
  handle(s.model).optimizer->zero_grad();
  if (!s.flag) {
    group.set_post_accumulate_grad_hook({});
    steppers.erase(s.node);
    return;
  }
  auto& stepper = steppers[s.node];
  stepper = make_optimizer(program_.models[static_cast<size_t>(s.model)].optimizer, /*fused=*/true,
                           runner_.net(s.model).owned_by(s.node));
  group.set_post_accumulate_grad_hook([optimizer = stepper.get()](const std::vector<Tensor>&) {
    optimizer->step();
    optimizer->zero_grad();
  });
}

void ShardedRun::save(const Statement& s) {
  const auto& net = runner_.net(s.model);
  std::stringstream file;
  torch::save(net.tensors(), file);
  std::vector<Tensor> loaded;
  torch::load(loaded, file);
  for (size_t i = 0; i < loaded.size(); ++i) record_rows(s, net.parameters[i], loaded[i].detach());
}

// The ranks that do not throw get a Mismatch, unless they needed the one that throws no more. Where all throw inside
// the model, one may hear of another before it comes to its own throw.
void ShardedRun::throw_and_reset(const Statement& s) {
  runner_.forget_graphs();
  const bool throws = s.rank < 0 || s.rank == runner_.rank;
  try {
    Tensor loss;
    {
      const ForwardScope scope(group(s));
      if (s.lag.inside) watch_.lags(s.lag);
      loss = runner_.loss_that_throws(s, throws);
    }
    loss.backward();
  } catch (const Planned&) {
  } catch (const Mismatch&) {
    if (throws && (s.rank >= 0 || s.node == 0)) throw;
  }
  group(s).reset_iter_state();
  // It drops gradients if a rank was in backward by then, which the ranks that did not throw may have been or not.
  handle(s.model).optimizer->zero_grad();
}

void ShardedRun::record_rows(const Statement& s, const NetParameter& parameter, const Tensor& rows) {
  auto value = value_of(rows);
  if (!parameter.is_ignored) {
    const auto held = local_rows(parameter.tensor);
    const auto sizes = global_sizes(parameter.tensor);
    value.is_rows = true;
    value.first = held.first;
    value.rows = held.count;
    value.all_rows = sizes.empty() ? 1 : sizes[0];
  }
  runner_.record(s, std::move(value));
}

void ShardedRun::compare_rows(const Statement& s) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : runner_.net(s.model).parameters)
    record_rows(s, parameter, parameter.tensor.detach().clone());
  for (const auto& buffer : runner_.net(s.model).buffers) runner_.record(s, buffer);
}

void ShardedRun::compare_gradients(const Statement& s) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : runner_.net(s.model).parameters) {
    auto gradient = parameter.tensor.grad();
    if (gradient.defined() && plant_ == Plant::kGradient && runner_.rank == 1) gradient = gradient + 1e-3;
    record_rows(s, parameter, gradient);
  }
}

}  // namespace

std::vector<Value> run_sharded(const Program& program, int rank, const Watch& watch, Plant plant, Meshes& meshes) {
  GroupsMade groups;
  auto values = ShardedRun(program, rank, watch, plant, meshes, groups).run();
  // Groups go with their parameters, and these with the module, the optimizer and the graphs. What an exception ended
  // in the middle of a backward may lie in a queue of LibTorch's until this thread runs another one.
  const auto order = in_order(program);
  const bool threw = std::ranges::any_of(order, [](const auto* statement) { return statement->kind == Kind::kThrow; });
  for (const auto& group : groups)
    if (!threw && !group.expired())
      throw Error("a group is still there after its model, its optimizer and all graphs went");
  return values;
}

}  // namespace fsdp::test::fuzz
