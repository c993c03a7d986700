#include <fsdp/serialize.h>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/serialize.h>

#include <map>
#include <set>
#include <utility>

#include "api/rows.h"
#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"
#include "state/format/format_error.h"
#include "state/format/manifest.h"
#include "state/format/sizes.h"
#include "state/optimizer_fields.h"
#include "state/optimizer_state.h"
#include "state/ranks.h"
#include "state/torch_archive.h"

namespace fsdp {
namespace {

using namespace state;
using torch::optim::Optimizer;

// An optimizer with the parameters of another one, a copy of its options, and a state of its own.
struct Twin : Optimizer {
  explicit Twin(const Optimizer& other)
      : Optimizer(other.param_groups(), other.param_groups().front().options().clone()) {}
  at::Tensor step(LossClosure /*closure*/) override { return {}; }
};

// The index of a parameter and the name of a state tensor, e.g. "exp_avg".
using Place = std::pair<size_t, std::string>;

ModelTensors parameters_of(const Optimizer& optimizer, const std::string& operation) {
  std::vector<runtime::NamedParameter> named;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g)
    for (size_t i = 0; i < optimizer.param_groups()[g].params().size(); ++i)
      named.push_back({str_cat("group ", g, " parameter ", i), optimizer.param_groups()[g].params()[i]});
  return state::tensors_of(named, operation);
}

std::set<Place> places_in(const std::vector<std::string>& texts) {
  std::set<Place> places;
  for (const auto& text : texts) {
    TextReader words(text);
    for (Place place; words >> place.first >> place.second;) places.insert(place);
  }
  return places;
}

at::Tensor whole_of(const at::Tensor& parameter, const at::Tensor& state, at::ScalarType dtype, const Ranks& ranks) {
  const auto part = runtime::registry().find(parameter);
  if (!part) return state;
  // A rank without rows of the parameter may have no state.
  const auto rows = state.defined() ? state : at::zeros(parameter.sizes(), parameter.options().dtype(dtype));
  return gather_rows(*part->group, part->slot, rows, ranks.call(), ranks.path());
}

void save_optimizer(const Optimizer& optimizer, const std::string& path) {
  const auto tensors = parameters_of(optimizer, "save");
  const Ranks ranks(tensors.ranks, "save", path);
  require_known(optimizer, tensors, ranks.where());
  std::map<Place, at::Tensor> own;
  std::string names;
  for (const auto& [place, field, values] : state::tensors_of(optimizer, tensors)) {
    own[{place, field}] = values;
    names += str_cat(place, " ", field, " ");
  }
  std::string numbers_here;
  const auto places = places_in(ranks.together([&] {
    numbers_here = numbers_of(optimizer, tensors);
    return names;
  }));
  std::vector<std::string> numbers;  // texts of all ranks; empty except on rank 0
  ranks.collect(numbers_here, 0, [&](int, const std::string& of_rank) { numbers.push_back(of_rank); });
  std::map<Place, at::Tensor> whole;
  FirstError error;
  for (const auto& place : places) {
    const runtime::OwnOperators own_operators;
    const auto& parameter = tensors.all[place.first].tensor;
    const auto values = whole_of(parameter, own[place], dtype_of_state(optimizer, parameter), ranks);
    if (ranks.rank() == 0 && values.defined()) error.run([&] { whole[place] = values.cpu(); });
  }
  ranks.all_do([&] {
    error.rethrow();
    if (ranks.rank() > 0) return;
    Twin twin(optimizer);
    restore(twin, tensors, joined_objects(numbers), [&](size_t place, const std::string& field) {
      const auto found = whole.find({place, field});
      return found == whole.end() ? at::Tensor() : found->second;
    });
    write_archive(path, [&](torch::serialize::OutputArchive& archive) {
      with_kind(twin.param_groups().front().options(), [&]<class Options, class State>(const Kind<Options, State>&) {
        torch::optim::serialize<State, Options>(archive, twin);
      });
    });
  });
}

// Returns this rank's rows of a state tensor, with the strides of the parameter's rows.
at::Tensor rows_of_state(const at::Tensor& whole, const ModelTensor& parameter, const std::string& field,
                         const std::string& path) {
  if (whole.sizes() != at::IntArrayRef(parameter.sizes))
    throw FormatError(path + ": " + field + " of " + parameter.name() + ": expected sizes " +
                      text_of(parameter.sizes) + ", found " + text_of(whole.sizes()) +
                      ". Load the file into an optimizer of the same parameters; if torch::save wrote the rows of one "
                      "rank, read them with torch::load");
  const runtime::OwnOperators own_operators;
  const auto& rows = parameter.tensor;
  return at::empty_strided(rows.sizes(), rows.strides(), whole.options().device(rows.device()))
      .copy_(rows_of(whole, parameter));
}

void load_optimizer(Optimizer& optimizer, const std::string& path) {
  const auto tensors = parameters_of(optimizer, "load");
  const Ranks ranks(tensors.ranks, "load", path);
  require_known(optimizer, tensors, ranks.where());
  Twin twin(optimizer);
  ranks.all_do([&] {
    with_kind(twin.param_groups().front().options(), [&]<class Options, class State>(const Kind<Options, State>&) {
      read_archive(path, [&](torch::serialize::InputArchive& archive) {
        torch::optim::serialize<State, Options>(archive, twin);
      });
      for (const auto& [key, state] : twin.state()) {
        const auto& parameter = tensors.all[tensors.places.at(static_cast<at::TensorImpl*>(key))];
        const auto take = [&](const char* field, at::Tensor& values) {
          if (values.defined()) values = rows_of_state(values, parameter, field, path);
        };
        fields_of(static_cast<State&>(*state), ForTensors<decltype(take)>{take});
      }
    });
  });
  std::swap(optimizer.state(), twin.state());
  // The options are assigned in place, because the user may hold references to them.
  with_kind(twin.param_groups().front().options(), [&]<class Options, class State>(const Kind<Options, State>&) {
    for (size_t g = 0; g < optimizer.param_groups().size(); ++g)
      static_cast<Options&>(optimizer.param_groups()[g].options()) =
          static_cast<const Options&>(twin.param_groups()[g].options());
  });
  add_missing_state(optimizer);
}

}  // namespace

void save(const Optimizer& optimizer, const std::string& path) { save_optimizer(optimizer, path); }
void load(Optimizer& optimizer, const std::string& path) { load_optimizer(optimizer, path); }

}  // namespace fsdp
