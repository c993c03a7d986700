#include "program_fuzz/print_cpp.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "program_fuzz/tables.h"

namespace fsdp::test::fuzz {
namespace {

const char* truth(bool value) { return value ? "true" : "false"; }

std::string text_of(c10::ScalarType dtype) { return c10::str("torch::k", dtype); }

std::string text_of(const Node& node) {
  if (node.reshard == WhenToReshard::kWithin) return c10::str("fsdp::Reshard::within(", node.neighbours, ')');
  return node.reshard == WhenToReshard::kAlways ? "fsdp::Reshard::always()" : "fsdp::Reshard::never()";
}

class Printer {
 public:
  explicit Printer(const Program& program) : program_(program) {}

  std::string print() {
    line("// ", program_.world_size, " ranks, backend \"", program_.backend, "\"; compile with -I tests");
    line(
        "#include <fsdp/fsdp.h>\n#include <torch/torch.h>\n\n#include <chrono>\n#include <sstream>\n#include <thread>");
    line("\n#include \"program_fuzz/parts.h\"\n\nusing namespace fsdp::test::fuzz;\n");
    const auto all = in_order(program_);
    for (int m = 0; m < kModels; ++m)
      if (std::ranges::any_of(all, [m](const auto* s) { return s->kind == Kind::kMake && s->model == m; }))
        for (size_t i = model(m).nodes.size(); i-- > 0;)
          if (model(m).nodes[i].same_as < 0) print_module(m, static_cast<int>(i));
    line("int main() {");
    ++indent_;
    line("fsdp::init_process_group({.backend = \"", program_.backend, "\"});");
    line("const int rank = fsdp::rank();");
    line("const auto input = [&](int seed) { return input_of({", program_.samples, ", ", program_.width,
         "}, {rank, seed}); };");
    line("torch::Tensor x[", kSlots, "], h[", kSlots, "], y[", kSlots, "];");
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
  const Model& model(int m) const { return program_.models[static_cast<size_t>(m)]; }

  std::string type_of(int m, int node) const {
    const auto& spec = model(m).nodes[static_cast<size_t>(node)];
    return c10::str(m == 0 ? "Net" : "Other", spec.same_as >= 0 ? spec.same_as : node);
  }

  // The type of a node's module: its parameters are p, its children n and their number.
  void print_module(int m, int number) {
    const auto& nodes = model(m).nodes;
    const auto& node = nodes[static_cast<size_t>(number)];
    const auto dtype = text_of(node.dtype);
    const auto type = type_of(m, number);
    std::vector<std::string> forward;
    line("struct ", type, " : torch::nn::Module {");
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].parent != number) continue;
      const auto child = type_of(m, static_cast<int>(i));
      line("  std::shared_ptr<", child, "> n", i,
           nodes[i].same_as >= 0 ? c10::str(";  // the module of n", nodes[i].same_as, ", registered here too")
                                 : c10::str(" = register_module(\"n", i, "\", std::make_shared<", child, ">());"));
      const char* options = nodes[i].recompute == Recompute::kAll ? "" : "{.keeps_results = fsdp::is_product}, ";
      forward.push_back(nodes[i].recompute == Recompute::kNothing
                            ? c10::str("n", i, "->forward(h, call)")
                            : c10::str("fsdp::activation_checkpoint(", options, 'n', i, ", h, call)"));
    }
    const auto sizes = sizes_of(program_, node);
    if (node.cell == Cell::kRunning)
      line("  torch::Tensor mean = register_buffer(\"mean\", first_values({", program_.width, "}, ", dtype, ", ",
           number, "));");
    if (!sizes.empty()) line("  std::vector<torch::Tensor> p;");
    if (node.tied_to >= 0) line("  // registers the parameters of n", node.tied_to, " instead");
    line("  ", type, "() {");
    for (size_t i = 0; i < sizes.size(); ++i) {
      const bool trains = has_trained(node, static_cast<int>(i));
      line("    p.push_back(register_parameter(\"p", i, "\", first_values({", c10::Join(", ", sizes[i]), "}, ", dtype,
           ", ", 10 * number + static_cast<int>(i), "), ", truth(trains), "));");
      if (node.is_hooked && trains && node.tied_to < 0)
        line("    p.back().register_hook([](torch::Tensor g) { return g / (1.0 + g.numel()); });");
    }
    line("  }");
    line("  torch::Tensor forward(torch::Tensor h, const Call& call) {");
    if (node.cell != Cell::kSequence) line("    h = h.to(", model(m).is_mixed ? "torch::kFloat" : dtype, ");");
    for (const auto& term : forward) line("    h = h + ", term, ";");
    line("    return (", info_of(node.cell).formula, ").to(torch::kDouble);");
    line("  }\n};\n");
  }

  std::string net(int m) const { return m == 0 ? "net" : "other"; }
  std::string optimizer(int m) const { return m == 0 ? "optimizer" : "optimizer_of_other"; }
  std::string node_path(int m, int node) const {
    std::string path;
    for (int at = node; at > 0; at = model(m).nodes[static_cast<size_t>(at)].parent) path = c10::str("->n", at, path);
    return net(m) + path;
  }
  std::string group(int m, int node) const {
    return node == 0 ? net(m) + "_group" : c10::str("fsdp::group_of(*", node_path(m, node), ")");
  }
  std::string make_optimizer(int m, const std::string& name, const std::string& parameters) const {
    const auto& info = info_of(model(m).optimizer);
    return c10::str(info.name, ' ', name, '(', parameters, ", ", info.options, ");");
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

  void print_make(int m) {
    const auto& nodes = model(m).nodes;
    line("auto ", net(m), " = std::make_shared<", type_of(m, 0), ">();");
    if (model(m).is_synced) line("// ranks other than 0 have other values here");
    for (size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i].is_ignored) line("// the parameters of n", i, " are in ignored_params");
    for (int i = static_cast<int>(nodes.size()) - 1; i >= 0; --i) {
      const auto& node = nodes[static_cast<size_t>(i)];
      if (i > 0 && node.is_group && model(m).by_policy)
        line("// the next call's auto_wrap_policy makes a group of n", i);
      if (i > 0 && (!node.is_group || model(m).by_policy)) continue;
      line(i == 0 ? c10::str("auto ", net(m), "_group = ") : std::string(), "fsdp::fully_shard(",
           i == 0 ? net(m) : c10::str('*', node_path(m, i)), fields_of(model(m), node), ");");
    }
    line(make_optimizer(m, optimizer(m), net(m) + "_group.parameters()"));
    line("fsdp::GradScaler scaler_of_", net(m), "({.init_scale = 1024});");
  }

  void print_list(const std::vector<Statement>& statements) {
    for (const auto& statement : statements) {
      if (!statement.lag.inside) print_lag(statement.lag);
      if (statement.kind == Kind::kMake)
        print_make(statement.model);
      else
        print_statement(statement);
    }
  }

  void print_lag(const Lag& lag) {
    if (lag.rank >= 0)
      line("if (rank == ", lag.rank,
           ") std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until the others are ", lag.ahead,
           " statements ahead, or wait");
  }

  void print_statement(const Statement& s) {
    std::istringstream lines(expand(info_of(s.kind).cpp, s));
    for (std::string one; std::getline(lines, one);) {
      if (one == "$B") {
        print_body(s);
      } else if (one == "$L") {
        if (s.lag.inside && (s.kind == Kind::kGrad || s.kind == Kind::kBackward))
          line("// rank ", s.lag.rank, " is held up in Pause::backward");
        else if (s.lag.inside)
          print_lag(s.lag);
      } else if (one.find_first_not_of(' ') != std::string::npos) {
        line(one);
      }
    }
  }

  void print_body(const Statement& s) {
    auto& open = scopes_[static_cast<size_t>(s.model)];
    if (s.kind == Kind::kScope) open.push_back(s.node);
    ++indent_;
    print_list(s.body);
    --indent_;
    if (s.kind == Kind::kScope) open.pop_back();
  }

  // "@(a|b)@" is a if the statement's flag is set, else b; "$" and a letter is what meaning_of says.
  std::string expand(const std::string& from, const Statement& s) const {
    std::string text;
    for (size_t i = 0; i < from.size(); ++i) {
      if (from.compare(i, 2, "@(") == 0) {
        const size_t bar = from.find('|', i), end = from.find(")@", i);
        text += expand(s.flag ? from.substr(i + 2, bar - i - 2) : from.substr(bar + 1, end - bar - 1), s);
        i = end + 1;
      } else if (from[i] == '$') {
        text += meaning_of(from[++i], s);
      } else {
        text += from[i];
      }
    }
    return text;
  }

  std::string meaning_of(char what, const Statement& s) const {
    const int m = s.model;
    const auto seed = c10::str("input(", s.seed, ')'), slot = c10::str("y[", s.slot, ']');
    const std::map<char, std::string> meanings{
        {'M', net(m)},
        {'R', group(m, 0)},
        {'G', group(m, s.node)},
        {'N', node_path(m, s.node)},
        {'n', c10::str(s.node)},
        {'O', optimizer(m)},
        {'t', make_optimizer(m, c10::str("stepper_of_n", s.node), "the parameters of that group alone")},
        {'a', c10::str(s.slot)},
        {'v', c10::str(s.value)},
        {'s', c10::str(s.seed)},
        {'k', c10::str(s.rank)},
        {'w', s.rank < 0 ? "every rank" : c10::str("rank ", s.rank)},
        {'f', truth(s.flag)},
        {'F', truth(!s.flag)},
        {'p', others(s)},
        {'x', s.other >= 0 ? c10::str("h[", s.other, ']') : seed + (s.flag ? ".requires_grad_()" : "")},
        {'y', s.other < 0 ? slot : c10::str('(', slot, " + y[", s.other, "])")},
        {'E', opens_scope(s) ? c10::str("fsdp::ForwardScope scope(", group(m, s.at), ");") : ""},
        {'c', callee(s)},
        {'g', grad(s)},
        {'B', "$B"},  // lines of their own
        {'L', "$L"}};
    return meanings.at(what);
  }

  std::string others(const Statement& s) const {
    std::vector<std::string> groups;
    for (int node : s.nodes) groups.push_back(group(s.model, node));
    return c10::Join(", ", groups);
  }

  bool opens_scope(const Statement& s) const {
    const auto covers = [&](int at) { return is_within(model(s.model), s.node, at); };
    return s.entry == Entry::kScope && std::ranges::none_of(scopes_[static_cast<size_t>(s.model)], covers);
  }

  // The module or the handle that is called, with what calls it.
  std::string callee(const Statement& s) const {
    const auto path = node_path(s.model, s.node);
    if (s.entry == Entry::kScope) return path + "->forward";
    if (s.node != 0 || s.entry == Entry::kHandleOf) return c10::str("fsdp::handle_of(*", path, ")");
    return group(s.model, 0) + (s.entry == Entry::kForward ? ".forward" : "");
  }

  std::string grad(const Statement& s) const {
    const bool creates = s.other >= 0;
    const auto inputs = s.node < 0 ? "" : c10::str(", the parameters of ", node_path(s.model, s.node));
    const auto call = c10::str("torch::autograd::grad({y[", s.slot, "]}, {x[", s.slot, ']', inputs, "}, {}, ",
                               truth(s.flag || creates), ", ", truth(creates), ", true)");
    return creates ? c10::str("x[", s.other, "] = x[", s.slot, "];\ny[", s.other, "] = ", call,
                              "[0].square().sum();  // compared; of all results")
                   : call + ";  // compared";
  }

  const Program& program_;
  std::ostringstream text_;
  int indent_ = 0;
  std::array<std::vector<int>, kModels> scopes_;  // nodes of their groups
};

}  // namespace

std::string print_cpp(const Program& program) { return Printer(program).print(); }

}  // namespace fsdp::test::fuzz
