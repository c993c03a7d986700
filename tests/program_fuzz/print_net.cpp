#include "program_fuzz/print_net.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <sstream>

namespace fsdp::test::fuzz {
namespace {

constexpr const char* kLayer = R"(struct Layer : torch::autograd::Function<Layer> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor h, torch::Tensor weight) {
    auto out = torch::tanh(torch::matmul(h, weight.t()));
    context->save_for_backward({h, weight, out});
    return out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto saved = context->get_saved_variables();
    auto inner = gradients[0] * (1 - saved[2] * saved[2]);
    return {torch::matmul(inner, saved[1]), torch::matmul(inner.t(), saved[0])};
  }
};

)";

constexpr const char* kPause = R"(struct Pause : torch::autograd::Function<Pause> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor h) { return h.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0].clone()};  // a rank may be held up here
  }
};

)";

constexpr const char* kRunning = R"(torch::Tensor less_running_mean(torch::Tensor h, torch::Tensor mean) {
  auto centered = h - mean.clone();
  if (!torch::GradMode::is_enabled()) return centered;
  torch::NoGradGuard no_grad;
  mean.mul_(0.75).add_(h.mean(0), 0.25);
  return centered;
}

)";

constexpr const char* kValues = R"(torch::Tensor first_values(at::IntArrayRef sizes, torch::Dtype dtype, int place) {
  auto numbers = torch::arange(c10::multiply_integers(sizes), torch::kDouble);
  return (torch::sin(numbers * 1.3 + 0.7 * place) * 0.4).to(dtype).view(sizes);
}

torch::Tensor input(int rank, int seed) {
  auto numbers = torch::arange(kSamples * kWidth, torch::kDouble);
  return torch::sin(numbers * (0.9 + 0.1 * seed) + rank).view({kSamples, kWidth});
}

)";

// Of the parameters of a cell, as text.
std::vector<std::string> sizes_of(const Node& node) {
  switch (node.cell) {
    case Cell::kLinear:
      return {"{kWidth, kWidth}", "{kWidth}"};
    case Cell::kWide:
      return {c10::str('{', node.size, ", kWidth}"), c10::str("{kWidth, ", node.size, '}')};
    case Cell::kScale:
      return {"{}"};
    case Cell::kRunning:
      return {"{kWidth}"};
    case Cell::kNorm:
    case Cell::kSometimes:
      return {"{kWidth}", "{kWidth}"};
    case Cell::kTable:
    case Cell::kUnused:
    case Cell::kLarge:
      return {c10::str('{', node.size, ", kWidth}")};
    case Cell::kFunction:
      return {"{kWidth, kWidth}"};
    case Cell::kAdapter:
      return {"{kWidth, kWidth}", c10::str('{', node.size, ", kWidth}"), c10::str("{kWidth, ", node.size, '}')};
    case Cell::kSequence:
    case Cell::kPause:
      break;
  }
  return {};
}

const char* name_of(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Double) return "torch::kDouble";
  return dtype == c10::ScalarType::Float ? "torch::kFloat" : "torch::kBFloat16";
}

std::string formula_of(const Node& node) {
  switch (node.cell) {
    case Cell::kLinear:
      return "torch::tanh(torch::linear(h, p[0], p[1]))";
    case Cell::kWide:
      return "torch::linear(torch::tanh(torch::linear(h, p[0])), p[1])";
    case Cell::kScale:
      return "h * p[0]";
    case Cell::kNorm:
      return "torch::layer_norm(h, {kWidth}, p[0], p[1])";
    case Cell::kTable:
      return c10::str("torch::embedding(p[0], (torch::arange(kSamples) * 7 + seed + 3 * rank).remainder(", node.size,
                      "))");
    case Cell::kAdapter:
      return "torch::tanh(torch::linear(h, p[0]) + torch::linear(torch::linear(h, p[1]), p[2]))";
    case Cell::kFunction:
      return "Layer::apply(h, p[0])";
    case Cell::kSometimes:
      return "(seed + rank) % 2 == 0 ? h * p[0] + p[1] : h * p[0]";
    case Cell::kRunning:
      return "less_running_mean(h, mean) * p[0]";
    case Cell::kPause:
      return "0.1 * Pause::apply(h)";
    case Cell::kLarge:
      return "h * p[0].square().mean(0)";
    case Cell::kUnused:
    case Cell::kSequence:
      break;
  }
  return "0.1 * h";
}

class NetPrinter {
 public:
  NetPrinter(const Program& program, int model)
      : program_(program), model_(model), nodes_(program.models[static_cast<size_t>(model)].nodes) {}

  std::string print() {
    for (size_t i = nodes_.size(); i-- > 0;)
      if (nodes_[i].same_as < 0) print_node(static_cast<int>(i));
    return text_.str();
  }

 private:
  void print_node(int number) {
    const auto& node = nodes_[static_cast<size_t>(number)];
    text_ << "struct " << type_of(program_, model_, number) << " : torch::nn::Module {\n";
    print_children(number);
    print_parameters(node, number);
    text_ << "  torch::Tensor forward(torch::Tensor h, int rank, int seed) {\n";
    if (node.cell == Cell::kSequence) {
      for (size_t i = 0; i < nodes_.size(); ++i)
        if (nodes_[i].parent == number) text_ << "    h = h + " << call_of(static_cast<int>(i)) << ";\n";
      text_ << "    return h;\n";
    } else if (node.dtype != c10::ScalarType::Double) {
      text_ << "    h = h.to(" << name_of(node.dtype) << ");\n    return (" << formula_of(node)
            << ").to(torch::kDouble);\n";
    } else {
      text_ << "    return " << formula_of(node) << ";\n";
    }
    text_ << "  }\n};\n\n";
  }

  std::string call_of(int child) const {
    switch (nodes_[static_cast<size_t>(child)].recompute) {
      case Recompute::kNothing:
        return c10::str('n', child, "->forward(h, rank, seed)");
      case Recompute::kAll:
        return c10::str("fsdp::activation_checkpoint(n", child, ", h, rank, seed)");
      case Recompute::kAllButProducts:
        return c10::str("fsdp::activation_checkpoint({.keeps_results = fsdp::is_product}, n", child,
                        ", h, rank, seed)");
    }
    return {};
  }

  void print_children(int number) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].parent != number) continue;
      const auto type = type_of(program_, model_, static_cast<int>(i));
      text_ << "  std::shared_ptr<" << type << "> n" << i;
      if (nodes_[i].same_as >= 0)
        text_ << ";  // the module of n" << nodes_[i].same_as << ", registered here too\n";
      else
        text_ << " = register_module(\"n" << i << "\", std::make_shared<" << type << ">());\n";
    }
  }

  void print_parameters(const Node& node, int number) {
    const auto sizes = sizes_of(node);
    if (sizes.empty()) return;
    const std::string dtype = name_of(node.dtype);
    text_ << "  std::vector<torch::Tensor> p;\n";
    if (node.cell == Cell::kRunning)
      text_ << "  torch::Tensor mean = register_buffer(\"mean\", first_values({kWidth}, " << dtype << ", " << number
            << "));\n";
    if (node.tied_to >= 0) text_ << "  // registers the parameters of n" << node.tied_to << " instead\n";
    text_ << "  " << type_of(program_, model_, number) << "() {\n";
    const auto trains = [&](size_t i) { return !node.is_frozen && (node.cell != Cell::kAdapter || i > 0); };
    for (size_t i = 0; i < sizes.size(); ++i)
      text_ << "    p.push_back(register_parameter(\"p" << i << "\", first_values(" << sizes[i] << ", " << dtype << ", "
            << 10 * number + static_cast<int>(i) << ')' << (trains(i) ? "" : ", false") << "));\n";
    if (node.is_hooked && !node.is_frozen && node.tied_to < 0)
      text_ << "    for (auto& parameter : p)\n"
               "      if (parameter.requires_grad())\n"
               "        parameter.register_hook([](torch::Tensor g) { return g / static_cast<double>(1 + g.numel()); "
               "});\n";
    text_ << "  }\n";
  }

  const Program& program_;
  const int model_;
  const std::vector<Node>& nodes_;
  std::ostringstream text_;
};

}  // namespace

std::string type_of(const Program& program, int model, int node) {
  const auto& spec = program.models[static_cast<size_t>(model)].nodes[static_cast<size_t>(node)];
  return c10::str(model == 0 ? "Net" : "Other", spec.same_as >= 0 ? spec.same_as : node);
}

std::string print_nets(const Program& program, const std::vector<int>& models) {
  const auto have = [&](Cell cell) {
    return std::any_of(models.begin(), models.end(), [&](int model) {
      const auto& nodes = program.models[static_cast<size_t>(model)].nodes;
      return std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) { return node.cell == cell; });
    });
  };
  std::string text = have(Cell::kFunction) ? kLayer : "";
  if (have(Cell::kPause)) text += kPause;
  if (have(Cell::kRunning)) text += kRunning;
  text += kValues;
  for (int model : models) text += NetPrinter(program, model).print();
  return text;
}

}  // namespace fsdp::test::fuzz
