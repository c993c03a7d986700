#include "state/optimizer_state.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "comm/core/check.h"
#include "state/json_numbers.h"
#include "state/optimizer_fields.h"

namespace fsdp::state {
namespace {

using json = nlohmann::ordered_json;
using torch::optim::Optimizer;

std::string kind_of(const Optimizer& optimizer) {
  std::string name;
  for (const auto& group : optimizer.param_groups()) {
    name.clear();
    if (!with_kind(group.options(), [&](const auto& kind) { name = kind.name; })) break;
  }
  return name;
}

size_t place_of(const at::Tensor& parameter, const ModelTensors& tensors) {
  return tensors.places.at(parameter.unsafeGetTensorImpl());
}

// Returns the names of the parameters of a parameter group, each once. In a pipeline they include those of other ranks'
// stages.
std::vector<std::string> names_in(const Optimizer& optimizer, size_t group, const ModelTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& parameter : optimizer.param_groups()[group].params()) {
    const auto& name = tensors.all[place_of(parameter, tensors)].name();
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  for (const auto& [name, group_there] : tensors.elsewhere)
    if (group_there == group) names.push_back(name);
  return names;
}

// Calls `act(kind, place, state)` once for each parameter that has state.
void for_each_state(const Optimizer& optimizer, const ModelTensors& tensors, const auto& act) {
  std::set<size_t> seen;
  for (const auto& group : optimizer.param_groups())
    with_kind(group.options(), [&]<class Options, class State>(const Kind<Options, State>&) {
      for (const auto& parameter : group.params()) {
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        const auto place = place_of(parameter, tensors);
        if (found != optimizer.state().end() && seen.insert(place).second)
          act(place, static_cast<State&>(*found->second));
      }
    });
}

// Visitors for fields_of that write numbers to JSON and read them from JSON. They skip tensors.
struct WriteNumbers {
  json& to;
  void operator()(const char* name, const auto& value) const { to[name] = written_numbers(json(value)); }
  void operator()(const char* /*name*/, const at::Tensor& /*value*/) const {}
};
struct ReadNumbers {
  const json& from;
  template <class Value>
  void operator()(const char* name, Value& value) const {
    value = read_numbers(from.at(name)).get<Value>();
  }
  void operator()(const char* /*name*/, at::Tensor& /*value*/) const {}
};

// Returns the options of each parameter group and the names of its parameters.
json options_of(const Optimizer& optimizer, const ModelTensors& tensors) {
  json groups = json::array();
  for (const auto& group : optimizer.param_groups())
    with_kind(group.options(), [&]<class Options, class State>(const Kind<Options, State>&) {
      json options = json::object();
      fields_of(const_cast<Options&>(static_cast<const Options&>(group.options())), WriteNumbers{options});
      groups.push_back({{"parameters", names_in(optimizer, groups.size(), tensors)}, {"options", std::move(options)}});
    });
  return groups;
}

}  // namespace

std::string name_of_state(const std::string& parameter, const std::string& field) {
  return "optim.state." + parameter + "." + field;
}

void require_known(const Optimizer& optimizer, const ModelTensors& tensors, const std::string& where) {
  require(!kind_of(optimizer).empty(), where,
          "expected AdamW, Adam, SGD, Adagrad, RMSprop or Adadelta, whose state has the parameters' sizes, found ",
          "a different optimizer. Save this optimizer with torch::save on each rank, and pass no "
          "optimizer to this call");
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (size_t i = 0; i < parameters.size(); ++i)
      require(tensors.places.contains(parameters[i].unsafeGetTensorImpl()), where, "parameter ", i,
              " of parameter group ", g,
              " of the optimizer is not a parameter of the model. Pass the model that has all of the optimizer's "
              "parameters");
  }
}

std::string numbers_of(const Optimizer& optimizer, const ModelTensors& tensors) {
  json numbers = json::object();
  if (!tensors.ranks || tensors.ranks->rank() == 0) {
    numbers["kind"] = kind_of(optimizer);
    numbers["groups"] = options_of(optimizer, tensors);
  }
  auto& states = numbers["state"] = json::object();
  for_each_state(optimizer, tensors, [&](size_t place, auto& state) {
    const auto& tensor = tensors.all[place];
    if (tensor.share.first > 0 || tensor.share.count == 0) return;  // another rank writes these numbers
    fields_of(state, WriteNumbers{states[tensor.name()] = json::object()});
  });
  return numbers.dump();
}

at::ScalarType dtype_of_state(const Optimizer& optimizer, const at::Tensor& parameter) {
  const auto* flat = dynamic_cast<const optim::FlatOptimizer*>(&optimizer);
  return (flat ? flat->state_options().state_dtype : std::nullopt).value_or(parameter.scalar_type());
}

std::vector<std::string> state_fields(const Optimizer& optimizer) {
  std::vector<std::string> names;
  with_kind(optimizer.param_groups().front().options(), [&]<class Options, class State>(const Kind<Options, State>&) {
    const auto add = [&](const char* field, const at::Tensor&) { names.emplace_back(field); };
    State state;
    fields_of(state, ForTensors<decltype(add)>{add});
  });
  return names;
}

std::vector<StateTensor> tensors_of(const Optimizer& optimizer, const ModelTensors& tensors) {
  std::vector<StateTensor> list;
  for_each_state(optimizer, tensors, [&](size_t place, auto& state) {
    const auto add = [&](const char* field, const at::Tensor& values) {
      if (values.defined()) list.push_back({place, field, values});
    };
    fields_of(state, ForTensors<decltype(add)>{add});
  });
  return list;
}

std::string misfit_of(const Optimizer& optimizer, const ModelTensors& tensors, const std::string& numbers) {
  const auto saved = json::parse(numbers);
  if (!saved.contains("kind")) return "the checkpoint has no optimizer";
  if (const auto kind = kind_of(optimizer); saved["kind"] != kind)
    return str_cat("the optimizer is ", kind, ", but the checkpoint was saved with ", saved["kind"].dump());
  const auto& groups = optimizer.param_groups();
  if (saved["groups"].size() != groups.size())
    return str_cat("the optimizer has ", groups.size(), " parameter groups, but the checkpoint was saved with ",
                   saved["groups"].size());
  for (size_t g = 0; g < groups.size(); ++g) {
    auto expected = saved["groups"][g].at("parameters").get<std::vector<std::string>>(),
         found = names_in(optimizer, g, tensors);
    std::sort(expected.begin(), expected.end());
    std::sort(found.begin(), found.end());
    if (expected != found)
      return str_cat("parameter group ", g, " of the optimizer has [", str_join(", ", found),
                     "], but the checkpoint was saved with [", str_join(", ", expected), "]");
  }
  return {};
}

void restore(Optimizer& optimizer, const ModelTensors& tensors, const std::string& numbers,
             const std::function<at::Tensor(size_t place, const std::string& field)>& read) {
  const auto saved = json::parse(numbers);
  optimizer.state().clear();
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    auto& group = optimizer.param_groups()[g];
    with_kind(group.options(), [&]<class Options, class State>(const Kind<Options, State>&) {
      fields_of(static_cast<Options&>(group.options()), ReadNumbers{saved["groups"][g].at("options")});
      for (const auto& parameter : group.params()) {
        const auto place = place_of(parameter, tensors);
        const auto found = saved["state"].find(tensors.all[place].name());
        if (found == saved["state"].end()) continue;
        auto state = std::make_unique<State>();
        fields_of(*state, ReadNumbers{*found});
        const auto fill = [&](const char* field, at::Tensor& values) { values = read(place, field); };
        fields_of(*state, ForTensors<decltype(fill)>{fill});
        optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
      }
    });
  }
  add_missing_state(optimizer);
}

void add_missing_state(Optimizer& optimizer) {
  if (!dynamic_cast<torch::optim::Adagrad*>(&optimizer) || dynamic_cast<optim::FlatOptimizer*>(&optimizer)) return;
  for (const auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::AdagradOptions&>(group.options());
    for (const auto& parameter : group.params()) {
      auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (state) continue;
      auto made = std::make_unique<torch::optim::AdagradParamState>();
      made->step(0);
      made->sum(at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options())
                    .fill_(options.initial_accumulator_value()));
      state = std::move(made);
    }
  }
}

}  // namespace fsdp::state
