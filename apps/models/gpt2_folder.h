#pragma once
/// \file
/// GPT-2 as Python's `transformers` saves it: a folder with config.json and model.safetensors.

#include <string>

#include "models/gpt.h"

namespace models {

/// The configuration in `folder`/config.json, without dropout. Throws fsdp::state::FormatError, which names what of a
/// configuration GPT cannot be.
GPTConfig gpt2_config(const std::string& folder);

/// Gives `model`, a GPT of that configuration, the values of `folder`/model.safetensors, whichever floating dtype they
/// have. The head is a parameter of its own here: where GPT-2 ties it to the embedding it becomes a copy. The model may
/// be sharded, outside of scopes: each rank reads one whole tensor after the other and keeps its rows. Not collective.
/// Throws fsdp::state::FormatError for a tensor that is missing, of other sizes, or of no use.
///
///     models::GPT model(models::gpt2_config("gpt2"));
///     models::load_gpt2(*model, "gpt2");
void load_gpt2(GPTImpl& model, const std::string& folder);

}  // namespace models
