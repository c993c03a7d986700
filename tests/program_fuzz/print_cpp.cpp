#include "program_fuzz/print_cpp.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "program_fuzz/print_net.h"

namespace fsdp::test::fuzz {
namespace {

const char* truth(bool value) { return value ? "true" : "false"; }

std::string text_of(const Node& node) {
  if (node.reshard == WhenToReshard::kWithin) return c10::str("fsdp::Reshard::within(", node.neighbours, ')');
  return node.reshard == WhenToReshard::kAlways ? "fsdp::Reshard::always()" : "fsdp::Reshard::never()";
}

const char* options_of(Optimizer kind) {
  switch (kind) {
    case Optimizer::kSgd:
    case Optimizer::kFusedSgd:
      return "torch::optim::SGDOptions(0.05).momentum(0.9)";
    case Optimizer::kAdamW:
    case Optimizer::kFusedAdamW:
      return "torch::optim::AdamWOptions(0.01).eps(1e-3)";
    case Optimizer::kFusedAdam:
      return "torch::optim::AdamOptions(0.01).eps(1e-3)";
    case Optimizer::kFusedRmsprop:
      return "torch::optim::RMSpropOptions(0.01).alpha(0.5).eps(1e-3)";
    case Optimizer::kFusedAdagrad:
      return "torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1).eps(1e-3)";
  }
  return "";
}

std::string optimizer_of(Optimizer kind, const std::string& name, const std::string& parameters) {
  return c10::str(name_of(kind), ' ', name, '(', parameters, ", ", options_of(kind), ");");
}

class Printer {
 public:
  explicit Printer(const Program& program) : program_(program) {}

  std::string print() {
    line("// ", program_.world_size, " ranks, backend \"", program_.backend, "\"");
    line(
        "#include <fsdp/fsdp.h>\n#include <torch/torch.h>\n\n#include <chrono>\n#include <sstream>\n#include "
        "<thread>\n");
    line("constexpr int64_t kSamples = ", program_.samples, ", kWidth = ", program_.width, ";\n");
    std::vector<int> made;
    for (int m = 0; m < kModels; ++m)
      if (is_made(m)) made.push_back(m);
    text_ << print_nets(program_, made);
    line("int main() {");
    ++indent_;
    line("fsdp::init_process_group({.backend = \"", program_.backend, "\"});");
    line("const int rank = fsdp::rank();");
    if (uses_graphs()) line("torch::Tensor x[", kSlots, "], h[", kSlots, "], y[", kSlots, "];");
    print_list(program_.statements);
    line("// Here every rank's rows and their gradients are compared with the unsharded run's.");
    --indent_;
    line("}");
    return text_.str();
  }

 private:
  template <class... Parts>
  void line(const Parts&... parts) {
    text_ << std::string(static_cast<size_t>(2 * indent_), ' ') << c10::str(parts...) << '\n';
  }

  bool is_made(int m) const {
    const auto all = in_order(program_);
    return std::any_of(all.begin(), all.end(), [&](const auto* s) { return s->kind == Kind::kMake && s->model == m; });
  }
  bool uses_graphs() const {
    const auto all = in_order(program_);
    return std::any_of(all.begin(), all.end(), [](const auto* s) { return s->kind == Kind::kForward; });
  }
  void print_list(const std::vector<Statement>& statements) {
    for (const auto& statement : statements) {
      if (statement.lag.rank >= 0 && !statement.lag.inside) print_lag(statement.lag);
      print_statement(statement);
    }
  }

  void print_lag(const Lag& lag) {
    line("if (rank == ", lag.rank,
         ") std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until the others are ", lag.ahead,
         " statements ahead, or wait");
  }

  std::string net(int m) const { return m == 0 ? "net" : "other"; }
  std::string optimizer(int m) const { return m == 0 ? "optimizer" : "optimizer_of_other"; }
  std::string node_path(int m, int node) const {
    const auto& nodes = program_.models[static_cast<size_t>(m)].nodes;
    std::string path;
    for (int at = node; at > 0; at = nodes[static_cast<size_t>(at)].parent) path = c10::str("->n", at, path);
    return net(m) + path;
  }
  std::string group(int m, int node) const {
    return node == 0 ? net(m) + "_group" : c10::str("fsdp::group_of(*", node_path(m, node), ")");
  }

  std::string fields_of(const Model& model, const Node& node) const {
    std::vector<std::string> fields;
    if (node.strategy != Strategy::kFullShard)
      fields.push_back(c10::str(".strategy = fsdp::Strategy::", node.strategy));
    if (node.shards != 0)
      fields.push_back(c10::str(".mesh = fsdp::init_device_mesh({", program_.world_size / node.shards, ", ",
                                node.shards, "}, {\"replicate\", \"shard\"})"));
    if (node.reshard != WhenToReshard::kUnset) fields.push_back(".reshard_after_forward = " + text_of(node));
    if (model.is_mixed)
      fields.push_back(
          ".mp_policy = fsdp::MixedPrecisionPolicy{.param_dtype = torch::kFloat, .reduce_dtype = torch::kDouble, "
          ".cast_forward_inputs = false}");
    if (model.host_limit_bytes >= 0)
      fields.push_back(c10::str(".disk_policy = fsdp::DiskOffloadPolicy{\"/tmp\", ", model.host_limit_bytes, '}'));
    if (model.is_synced) fields.push_back(".sync_module_states = true");
    return fields.empty() ? "" : c10::str(", {", c10::Join(", ", fields), '}');
  }

  void print_make(const Statement& s) {
    const auto& model = program_.models[static_cast<size_t>(s.model)];
    const auto name = net(s.model);
    line("auto ", name, " = std::make_shared<", type_of(program_, s.model, 0), ">();");
    if (model.is_synced) line("// ranks other than 0 have other values here");
    for (size_t i = 0; i < model.nodes.size(); ++i)
      if (model.nodes[i].is_ignored) line("// the parameters of n", i, " are in ignored_params");
    for (int i = static_cast<int>(model.nodes.size()) - 1; i >= 0; --i) {
      const auto& node = model.nodes[static_cast<size_t>(i)];
      if (i > 0 && (!node.is_group || model.by_policy)) continue;
      line(i == 0 ? c10::str("auto ", name, "_group = ") : std::string(), "fsdp::fully_shard(*", node_path(s.model, i),
           fields_of(model, node), ");");
    }
    if (model.by_policy)
      for (size_t i = 1; i < model.nodes.size(); ++i)
        if (model.nodes[i].is_group) line("// made by that call's auto_wrap_policy: n", i);
    line(optimizer_of(model.optimizer, optimizer(s.model), name + "_group.parameters()"));
    line("fsdp::GradScaler scaler_of_", name, "({.init_scale = 1024});");
  }

  void print_scope(const Statement& s, const std::string& guard) {
    line("{");
    ++indent_;
    if (!guard.empty()) line(guard);
    if (s.lag.rank >= 0 && s.lag.inside) print_lag(s.lag);
  }
  void close() {
    --indent_;
    line("}");
  }

  bool opens_scope(const Statement& s) const {
    const auto& model = program_.models[static_cast<size_t>(s.model)];
    const auto& open = scopes_[static_cast<size_t>(s.model)];
    return s.entry == Entry::kScope &&
           std::none_of(open.begin(), open.end(), [&](int at) { return is_within(model, s.node, at); });
  }
  // The module or the handle that is called, with what calls it.
  std::string callee(const Statement& s) const {
    const auto path = node_path(s.model, s.node);
    if (s.entry == Entry::kScope) return path + "->forward";
    if (s.node != 0 || s.entry == Entry::kHandleOf) return c10::str("fsdp::handle_of(*", path, ")");
    return group(s.model, 0) + (s.entry == Entry::kForward ? ".forward" : "");
  }

  void print_forward(const Statement& s) {
    const bool opens = opens_scope(s);
    if (opens) print_scope(s, c10::str("fsdp::ForwardScope scope(", group(s.model, s.at), ");"));
    line("x[", s.slot, "] = ",
         s.other >= 0 ? c10::str("h[", s.other, ']')
                      : c10::str("input(rank, ", s.seed, ')', s.flag ? ".requires_grad_()" : ""),
         ';');
    line("h[", s.slot, "] = ", callee(s), "(x[", s.slot, "], rank, ", s.seed, ");");
    line("y[", s.slot, "] = h[", s.slot, "].square().mean();  // compared");
    if (opens) close();
  }

  void print_body(const Statement& s) {
    const bool is_scope = s.kind == Kind::kScope;
    const auto guard = is_scope ? c10::str("fsdp::ForwardScope scope(", group(s.model, s.node), ");")
                       : s.kind == Kind::kLocalRows ? c10::str("fsdp::LocalRows rows(", group(s.model, 0), ");")
                                                    : c10::str("auto no_sync = ", group(s.model, 0), ".no_sync();");
    auto& open = scopes_[static_cast<size_t>(s.model)];
    print_scope(s, guard);
    if (is_scope) open.push_back(s.node);
    local_rows_ += s.kind == Kind::kLocalRows ? 1U << s.model : 0;
    print_list(s.body);
    local_rows_ -= s.kind == Kind::kLocalRows ? 1U << s.model : 0;
    if (is_scope) open.pop_back();
    if (is_scope && s.flag) line("scope.close();");
    close();
  }

  void print_grad(const Statement& s) {
    const bool creates = s.other >= 0;
    const auto inputs = s.node < 0 ? c10::str("x[", s.slot, "]")
                                   : c10::str("x[", s.slot, "], the parameters of ", node_path(s.model, s.node));
    const auto call = c10::str("torch::autograd::grad({y[", s.slot, "]}, {", inputs, "}, {}, ",
                               truth(s.flag || creates), ", ", truth(creates), ", true)");
    if (s.lag.rank >= 0 && s.lag.inside) line("// rank ", s.lag.rank, " is held up in Pause::backward");
    if (!creates) return line(call, ";  // compared");
    line("x[", s.other, "] = x[", s.slot, "];");
    line("y[", s.other, "] = ", call, "[0].square().sum();  // compared; of all results");
  }

  void print_summon(const Statement& s) {
    print_scope(s, c10::str("auto whole = fsdp::summon_full_params(", group(s.model, 0), ");"));
    line("torch::NoGradGuard no_grad;");
    line("for (auto& p : ", group(s.model, 0), ".parameters()) p",
         s.flag ? c10::str(".mul_(", s.value, ");") : " * 1.0;", "  // compared before");
    if (s.flag) line("whole.write_back();");
    close();
  }

  void print_scaled_step(const Statement& s) {
    const auto scaler = "scaler_of_" + net(s.model);
    print_scope(s, "// if a parameter that is not ignored has a gradient");
    line(scaler, ".scale(torch::ones({}));");
    line("for (auto& p : ", group(s.model, 0), ".parameters())");
    line("  if (p.grad().defined()) p.mutable_grad().mul_(", scaler, ".get_scale());");
    if (s.flag)
      line("// the rank that has row ", s.seed, " % its rows of the gradient of ", node_path(s.model, s.node),
           "->p[0] fills what it has of it with INFINITY");
    line(scaler, ".step(", optimizer(s.model), ");");
    line(scaler, ".update();");
    line(optimizer(s.model), ".zero_grad();");
    close();
  }

  void print_write(const Statement& s) {
    print_scope(s, "torch::NoGradGuard no_grad;");
    if (s.flag) line("fsdp::LocalRows rows(", group(s.model, 0), ");");
    line("for (auto& p : ", group(s.model, 0), ".parameters()) p.mul_(", s.value, ");");
    close();
  }

  void print_write_of_one_row(const Statement& s) {
    print_scope(s, "torch::NoGradGuard no_grad;");
    line("auto p = ", node_path(s.model, s.node), "->p[0];");
    line("const auto [first, count] = fsdp::local_rows(p);");
    line("const int64_t row = ", s.seed, " % (p.dim() == 0 ? 1 : fsdp::global_sizes(p)[0]) - first;");
    line("if (row >= 0 && row < count) {");
    ++indent_;
    if ((local_rows_ & (1U << s.model)) == 0) line("fsdp::LocalRows rows(", group(s.model, 0), ");");
    line("(p.dim() == 0 ? p : p[row]).mul_(", s.value, ");", s.flag ? "  // through its data_ptr()" : "");
    close();
    close();
  }

  void print_step_in_backward(const Statement& s) {
    const auto at = group(s.model, s.node);
    line(optimizer(s.model), ".zero_grad();");
    if (!s.flag) return line(at, ".set_post_accumulate_grad_hook({});");
    const auto stepper = c10::str("stepper_of_n", s.node);
    line(optimizer_of(program_.models[static_cast<size_t>(s.model)].optimizer, stepper,
                      "the parameters of that group alone"));
    line(at, ".set_post_accumulate_grad_hook([&](const auto&) { ", stepper, ".step(); ", stepper, ".zero_grad(); });");
  }

  void print_throw(const Statement& s) {
    line("try {");
    ++indent_;
    print_scope(s, c10::str("fsdp::ForwardScope scope(", group(s.model, 0), ");"));
    const auto who = s.rank < 0 ? std::string("every rank") : c10::str("rank ", s.rank);
    line("auto loss = ", net(s.model), "->forward(input(rank, ", s.seed, ").requires_grad_(), rank, ", s.seed,
         ").square().mean();");
    if (!s.flag) line("// here ", who, " throws");
    close();
    line("loss.backward();",
         s.flag ? c10::str("  // in a hook on the output of ", node_path(s.model, s.node), " ", who, " throws") : "");
    --indent_;
    line("} catch (const std::runtime_error&) {  // a Mismatch on ranks that do not throw");
    line("}");
    line(group(s.model, 0), ".reset_iter_state();");
    line(optimizer(s.model), ".zero_grad();");
  }

  void print_statement(const Statement& s) {
    const auto root = group(s.model, 0);
    const std::string optimizer = this->optimizer(s.model);
    switch (s.kind) {
      case Kind::kMake:
        return print_make(s);
      case Kind::kDrop:
        return line("// ", net(s.model), ", its handle and ", optimizer, " go");
      case Kind::kScope:
      case Kind::kNoSync:
      case Kind::kLocalRows:
        return print_body(s);
      case Kind::kForward:
        return print_forward(s);
      case Kind::kEvaluate:
        print_scope(s, opens_scope(s) ? c10::str("fsdp::ForwardScope scope(", group(s.model, s.at), ");") : "");
        line("torch::NoGradGuard no_grad;");
        line(callee(s), "(input(rank, ", s.seed, "), rank, ", s.seed, ");  // compared");
        return close();
      case Kind::kGrad:
        return print_grad(s);
      case Kind::kBackward:
        if (s.lag.rank >= 0 && s.lag.inside) line("// rank ", s.lag.rank, " is held up in Pause::backward");
        return line(s.other < 0 ? c10::str("y[", s.slot, ']') : c10::str("(y[", s.slot, "] + y[", s.other, "])"),
                    ".backward(", s.flag ? "{}, /*retain_graph=*/true" : "", ");");
      case Kind::kForget:
        return line("x[", s.slot, "] = h[", s.slot, "] = y[", s.slot, "] = {};");
      case Kind::kZeroGrad:
        return line(optimizer, ".zero_grad(", truth(s.flag), ");");
      case Kind::kStep:
        return line(optimizer, ".step();");
      case Kind::kScaledStep:
        return print_scaled_step(s);
      case Kind::kWriteRows:
        return print_write(s);
      case Kind::kWriteOneRow:
        return print_write_of_one_row(s);
      case Kind::kWriteWhole:
        print_scope(s, "torch::NoGradGuard no_grad;");
        line("for (auto& p : ", root, ".parameters())");
        line("  p.", s.flag ? "copy_" : "mul_", "(whole_operand(fsdp::global_sizes(p), ", s.value,
             "));  // cos(0.7 i + ", s.value, ')');
        return close();
      case Kind::kSummon:
        return print_summon(s);
      case Kind::kUnshard:
        return line(group(s.model, s.node), ".unshard()", s.flag ? ".wait();" : ";");
      case Kind::kReshard:
        return line(group(s.model, s.node), ".reshard();");
      case Kind::kKeepAfterForward:
        return line(root, ".set_reshard_after_forward(", truth(!s.flag), ");");
      case Kind::kKeepAfterBackward:
        return line(root, ".set_reshard_after_backward(", truth(!s.flag), ");");
      case Kind::kKeepInBackward:
        return line(group(s.model, s.node), ".set_unshard_in_backward(", truth(!s.flag), ");");
      case Kind::kClampReduced:
        return line(group(s.model, s.node), ".set_all_reduce_hook(",
                    s.flag ? c10::str("[](torch::Tensor rows) { rows.clamp_(-", s.value, ", ", s.value, "); }") : "{}",
                    ");");
      case Kind::kStepInBackward:
        return print_step_in_backward(s);
      case Kind::kFreeze:
        return line("for (auto& p : ", node_path(s.model, s.node), "->parameters(false)) p.set_requires_grad(",
                    truth(!s.flag), ");");
      case Kind::kReduceUnused:
        return line(root, ".set_reduce_scatter_unused_params(", truth(s.flag), ");");
      case Kind::kDivideFactor:
        return line(group(s.model, s.node), ".set_gradient_divide_factor(", s.value, ");");
      case Kind::kForwardPrefetch:
      case Kind::kBackwardPrefetch: {
        std::string others;
        for (int node : s.nodes) others += (others.empty() ? "" : ", ") + group(s.model, node);
        return line(group(s.model, s.node),
                    s.kind == Kind::kForwardPrefetch ? ".set_modules_to_forward_prefetch({"
                                                     : ".set_modules_to_backward_prefetch({",
                    others, "});");
      }
      case Kind::kClip:
        return line("fsdp::clip_grad_norm_(", root, ", ", s.value, ");  // compared");
      case Kind::kFullTensors:
        return line("for (auto& p : ", root, ".parameters()) fsdp::full_tensor(p);  // compared");
      case Kind::kSave:
        return line("std::stringstream file;\n  torch::save(", root,
                    ".parameters(), file);  // loaded again, and compared");
      case Kind::kThrow:
        return print_throw(s);
      case Kind::kBarrier:
        return line("fsdp::barrier();");
      case Kind::kAllReduce:
        return line("fsdp::all_reduce(input(rank, ", s.seed, ")", s.flag ? ", fsdp::ReduceOp::kMax" : "",
                    ");  // compared");
      case Kind::kAllGather:
        return line("fsdp::all_gather(input(rank, ", s.seed, "));  // compared");
      case Kind::kBroadcast:
        return line("fsdp::broadcast(input(rank, ", s.seed, "), ", s.rank, ");  // compared");
      case Kind::kMean:
        return line("fsdp::mean(input(rank, ", s.seed, ")[0][0].item<double>());  // compared");
      case Kind::kCompareRows:
        return line("// compared: rows of ", net(s.model));
      case Kind::kCompareGradients:
        return line("// compared: gradients of ", net(s.model));
    }
  }

  const Program& program_;
  std::ostringstream text_;
  int indent_ = 0;
  std::array<std::vector<int>, kModels> scopes_;  // nodes of their groups
  uint32_t local_rows_ = 0;                       // bits of models with a LocalRows of all ranks
};

}  // namespace

std::string print_cpp(const Program& program) { return Printer(program).print(); }

}  // namespace fsdp::test::fuzz
