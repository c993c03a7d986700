#include <fsdp/pipeline.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "comm/core/check.h"

namespace fsdp {
namespace {

constexpr auto kWhere = "fsdp split_stages: ";

std::vector<int64_t> numels_of_layers(const torch::nn::Sequential& model) {
  std::vector<int64_t> numels;
  for (const auto& layer : model->children()) {
    int64_t numel = 0;
    for (const auto& parameter : layer->parameters()) numel += parameter.numel();
    numels.push_back(numel);
  }
  return numels;
}

// Returns the index of the first layer of each stage but the first. The stages are cut so that the largest one has as
// few elements of parameters as possible.
std::vector<int64_t> balanced_cut(const std::vector<int64_t>& numels, size_t stages) {
  const size_t layers = numels.size();
  constexpr auto kNone = std::numeric_limits<int64_t>::max();
  // largest[s][n] is the number of elements of the largest stage if the first n layers are cut into s stages in the
  // best way. first_of_last[s][n] is the first layer of the last of these stages.
  std::vector<std::vector<int64_t>> largest(stages + 1, std::vector<int64_t>(layers + 1, kNone));
  auto first_of_last = largest;
  largest[0][0] = 0;
  for (size_t stage = 1; stage <= stages; ++stage)
    for (size_t end = stage; end <= layers; ++end) {
      int64_t own = 0;
      for (size_t first = end; first-- >= stage;) {
        own += numels[first];
        const int64_t most = std::max(own, largest[stage - 1][first]);
        if (most >= largest[stage][end]) continue;
        largest[stage][end] = most;
        first_of_last[stage][end] = static_cast<int64_t>(first);
      }
    }
  std::vector<int64_t> firsts;
  for (size_t stage = stages, end = layers; stage > 1; --stage) {
    firsts.push_back(first_of_last[stage][end]);
    end = static_cast<size_t>(firsts.back());
  }
  std::ranges::reverse(firsts);
  return firsts;
}

void require_no_shared_parameter(const std::vector<torch::nn::Sequential>& stages) {
  std::map<const at::TensorImpl*, std::pair<size_t, std::string>> owners;
  for (size_t stage = 0; stage < stages.size(); ++stage)
    for (const auto& parameter : stages[stage]->named_parameters()) {
      const auto [owner, is_new] = owners.try_emplace(parameter.value().unsafeGetTensorImpl(), stage, parameter.key());
      require(is_new || owner->second.first == stage, kWhere, "parameter '", parameter.key(), "' of stage ", stage,
              " is also '", owner->second.second, "' of stage ", owner->second.first,
              ", so each rank would train a separate copy. Put both uses into the same stage, or give each use a "
              "separate parameter");
    }
}

}  // namespace

std::vector<torch::nn::Sequential> split_stages(const torch::nn::Sequential& model, int stages) {
  const auto numels = numels_of_layers(model);
  require(stages >= 1 && std::ssize(numels) >= stages, kWhere, "expected a number of stages from 1 to ", numels.size(),
          ", the number of the model's layers, found ", stages);
  return split_stages_before(model, balanced_cut(numels, static_cast<size_t>(stages)));
}

std::vector<torch::nn::Sequential> split_stages_before(const torch::nn::Sequential& model,
                                                       const std::vector<int64_t>& first_layers) {
  const auto layers = static_cast<int64_t>(model->size());
  for (size_t i = 0; i < first_layers.size(); ++i)
    require(first_layers[i] > (i == 0 ? 0 : first_layers[i - 1]) && first_layers[i] < layers, kWhere,
            "expected ascending numbers of layers, each at least 1 and less than ", layers,
            ", the number of the model's layers, found ", first_layers[i]);
  std::vector<torch::nn::Sequential> stages(1);
  const auto names = model->named_children().keys();
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (std::ranges::find(first_layers, layer) != first_layers.end()) stages.emplace_back();
    // The layer keeps its name in the whole model, so that checkpoints of stages have the parameter names of the model.
    stages.back()->push_back(names[static_cast<size_t>(layer)], *(model->begin() + layer));
  }
  require_no_shared_parameter(stages);
  return stages;
}

}  // namespace fsdp
