#pragma once
/// \file
/// Reads a GPT-2 that Python's `transformers` saved: a folder with config.json and model.safetensors.

#include <string>

#include "models/gpt.h"

namespace models {

/// Returns the configuration in `folder`/config.json, with a dropout of 0. Throws fsdp::state::FormatError if this GPT
/// does not support the configuration; the error names the field.
GPTConfig gpt2_config(const std::string& folder);

/// Copies the values in `folder`/model.safetensors, of any floating dtype, into `model`, a GPT of that configuration.
/// If GPT-2 ties its head to the embedding, the head of `model`, a separate parameter, gets a copy. No scope may be
/// open. If the model is sharded, each rank reads the whole tensors one after another and keeps its rows. Not
/// collective. Throws fsdp::state::FormatError if a tensor is missing, unknown or of another shape.
///
///     models::GPT model(models::gpt2_config("gpt2"));
///     models::load_gpt2(*model, "gpt2");
void load_gpt2(GPTImpl& model, const std::string& folder);

}  // namespace models
