#include "models/gpt2_folder.h"

#include <fsdp/parameters.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "state/format/format_error.h"
#include "state/format/safetensors.h"
#include "state/format/sizes.h"
#include "state/torch_dtype.h"

namespace models {
namespace {

using fsdp::state::FormatError;
using nlohmann::json;

// Maps the parts of this GPT's parameter names to the parts of GPT-2's names.
const std::map<std::string, std::string>& modules() {
  static const std::map<std::string, std::string> names = {
      {"tok", "wte"},          {"pos", "wpe"},     {"blocks", "h"},      {"norm", "ln_f"},
      {"head", "lm_head"},     {"ln1", "ln_1"},    {"ln2", "ln_2"},      {"qkv", "attn.c_attn"},
      {"proj", "attn.c_proj"}, {"fc", "mlp.c_fc"}, {"fc2", "mlp.c_proj"}};
  return names;
}

// Returns GPT-2's name of a parameter: for "blocks.0.fc.weight" it returns "h.0.mlp.c_fc.weight".
std::string gpt2_name(const std::string& name) {
  std::string all;
  for (size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find('.', begin), name.size());
    const auto part = name.substr(begin, end - begin);
    const auto found = modules().find(part);
    all += (all.empty() ? "" : ".") + (found == modules().end() ? part : found->second);
    begin = end + 1;
  }
  return all;
}

// True if GPT-2 stores this weight as [inputs, outputs] (Conv1D). torch::nn::Linear stores [outputs, inputs].
bool is_transposed(const std::string& gpt2_name) {
  return gpt2_name.ends_with(".weight") &&
         (gpt2_name.find(".attn.") != gpt2_name.npos || gpt2_name.find(".mlp.") != gpt2_name.npos);
}

// True for attention masks. Older releases of transformers saved them beside the parameters.
bool is_mask(const std::string& gpt2_name) {
  return gpt2_name.ends_with(".attn.bias") || gpt2_name.ends_with(".attn.masked_bias");
}

at::Tensor read_tensor(const fsdp::state::SafetensorsFile& file, const std::string& name, at::IntArrayRef sizes) {
  const auto& entry = file.entry(name);
  if (entry.sizes != sizes)
    throw FormatError(file.path() + ": entry '" + name + "': expected the sizes " + fsdp::state::text_of(sizes) +
                      " of the configuration, found " + fsdp::state::text_of(entry.sizes));
  auto values = torch::empty(sizes, fsdp::state::scalar_type_of(entry.dtype));
  file.read(entry, 0, fsdp::state::mutable_bytes_in(values));
  return values;
}

// Throws if a field has another value than `expected`. The field may be absent, because `expected` is also its default.
void require_value(const json& config, const char* field, const json& expected, const std::string& path) {
  const auto found = config.value(field, expected);
  if (found != expected)
    throw FormatError(path + ": field '" + field + "': expected " + expected.dump() +
                      ", the only value that this program's GPT supports, found " + found.dump());
}

bool has_tanh_gelu(const json& config, const std::string& path) {
  const auto found = config.value("activation_function", "gelu_new");
  if (found == "gelu_new" || found == "gelu_pytorch_tanh") return true;
  if (found == "gelu") return false;
  throw FormatError(path + ": field 'activation_function': expected gelu_new, gelu_pytorch_tanh or gelu, found " +
                    found);
}

}  // namespace

GPTConfig gpt2_config(const std::string& folder) {
  const auto path = folder + "/config.json";
  try {
    const auto config = json::parse(fsdp::text_of_file(path, uint64_t{1} << 20));
    const GPTConfig gpt{.vocab = config.at("vocab_size"),
                        .seq = config.at("n_positions"),
                        .dim = config.at("n_embd"),
                        .layers = config.at("n_layer"),
                        .heads = config.at("n_head"),
                        .tanh_gelu = has_tanh_gelu(config, path)};
    require_value(config, "model_type", "gpt2", path);
    if (config.contains("n_inner") && !config["n_inner"].is_null()) require_value(config, "n_inner", 4 * gpt.dim, path);
    require_value(config, "layer_norm_epsilon", 1e-5, path);
    require_value(config, "scale_attn_weights", true, path);
    require_value(config, "scale_attn_by_inverse_layer_idx", false, path);
    require_value(config, "add_cross_attention", false, path);
    return gpt;
  } catch (const json::exception& error) {
    throw FormatError(path + ": expected the configuration of a GPT-2: " + error.what());
  }
}

void load_gpt2(GPTImpl& model, const std::string& folder) {
  const torch::NoGradGuard no_grad;
  const fsdp::state::SafetensorsFile file(folder + "/model.safetensors");
  // If the folder contains a model with a head, the names of all other parameters have this prefix.
  const std::string prefix = file.has("transformer.wte.weight") ? "transformer." : "";
  std::set<std::string> taken;
  for (const auto& item : model.named_parameters()) {
    auto name = gpt2_name(item.key());
    if (!name.starts_with("lm_head.")) name = prefix + name;
    if (name == "lm_head.weight" && !file.has(name)) name = prefix + "wte.weight";
    auto parameter = item.value();
    auto sizes = fsdp::global_sizes(parameter);
    if (is_transposed(name)) std::reverse(sizes.begin(), sizes.end());
    const auto values = read_tensor(file, name, sizes);
    parameter.copy_(is_transposed(name) ? values.t() : values);
    taken.insert(name);
  }
  for (const auto& entry : file.header().entries)
    if (!taken.contains(entry.name) && !is_mask(entry.name))
      throw FormatError(file.path() +
                        ": expected only the tensors of a GPT-2 with a language model's head, found also '" +
                        entry.name + "'");
}

}  // namespace models
