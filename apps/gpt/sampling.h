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

/// Returns the tokens that the sample continues: the prompt if there is one, or else a line break, or the first token
/// if the vocabulary has no line break. Throws std::invalid_argument if the prompt has no tokens, and what the
/// tokenizer throws if the vocabulary cannot express the prompt.
text::Tokens sample_start(const Text& text, const Arguments& arguments);

/// Returns the logits, of shape [vocabulary], of the token that follows `context`, of shape [1, tokens].
using NextToken = std::function<at::Tensor(const at::Tensor& context)>;

/// Returns the prompt and `arguments.sample` tokens that follow `start`, each drawn from the model's prediction. The
/// model is in evaluation mode meanwhile. Collective; every rank returns a text, and the texts are equal if the ranks'
/// processors round alike.
std::string write_sample(Model& model, const NextToken& next_token, const Text& text, text::Tokens start,
                         const Arguments& arguments);

}  // namespace gpt
