#pragma once
/// \file
/// Text written by the trained model.

#include <string>
#include <vector>

#include "arguments.h"
#include "model.h"
#include "text.h"

namespace gpt {

/// What the sample continues: the prompt, or else a line break, or the first token where the vocabulary has none.
/// Throws std::invalid_argument for a prompt without tokens, and what the tokenizer throws for one that the vocabulary
/// cannot express.
fsdp::text::Tokens sample_start(const Text& text, const Arguments& arguments);

/// The prompt and `arguments.sample` tokens after `start`, drawn one by one from what the model expects next.
/// Collective; every rank writes a text, the same one if their processors compute alike.
std::string write_sample(Model& model, const Text& text, fsdp::text::Tokens start, const Arguments& arguments);

}  // namespace gpt
