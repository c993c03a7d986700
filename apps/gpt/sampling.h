#pragma once
/// \file
/// Text written by the trained model.

#include <string>

#include "arguments.h"
#include "text.h"
#include "training.h"

namespace gpt {

/// `arguments.sample` characters, drawn one by one from what the model expects next. Collective; every rank writes a
/// text, the same one if their processors compute alike.
std::string write_sample(Model& model, const Text& text, const Arguments& arguments);

}  // namespace gpt
