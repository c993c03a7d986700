#pragma once
/// \file
/// Samples text from the trained model.

#include <functional>
#include <string>
#include <vector>

#include "arguments.h"
#include "model.h"
#include "text.h"

namespace gpt {

/// What the sample continues: the prompt, or else a line break, or the first token where the vocabulary has none.
/// Throws std::invalid_argument for a prompt without tokens, and what the tokenizer throws for one that the vocabulary
/// cannot express.
text::Tokens sample_start(const Text& text, const Arguments& arguments);

/// Returns the logits, of shape [vocabulary], of the token that follows `context`, of shape [1, tokens].
using NextToken = std::function<at::Tensor(const at::Tensor& context)>;

/// The prompt and `arguments.sample` tokens after `start`, drawn one by one from what the model expects next. `model`
/// evaluates meanwhile. Collective; every rank writes a text, the same one if their processors compute alike.
std::string write_sample(Model& model, const NextToken& next_token, const Text& text, text::Tokens start,
                         const Arguments& arguments);

}  // namespace gpt
