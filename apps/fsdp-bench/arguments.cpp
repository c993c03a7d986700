#include "arguments.h"

#include <CLI/CLI.hpp>

namespace bench {
namespace {

template <class Value>
void add(CLI::App& app, const char* flag, Value& value, const char* help, const CLI::Validator& check) {
  app.add_option(flag, value, help)->check(check)->capture_default_str()->take_last();
}

}  // namespace

void add_flags(CLI::App& app, StepArguments& arguments) {
  add(app, "--world", arguments.world, "Ranks, each a process with one thread", CLI::PositiveNumber);
  add(app, "--backend", arguments.backend, "How ranks communicate", CLI::IsMember({"auto", "gloo", "nccl"}));
  add(app, "--engine", arguments.engine, "fsdp, or none: every rank trains alone", CLI::IsMember({"fsdp", "none"}));
  add(app, "--reshard", arguments.reshard,
      "Freeing of whole parameters after forward; default: not of the outermost group",
      CLI::IsMember({"default", "always", "never"}));
  add(app, "--dim", arguments.dim, "Width of the model, a multiple of --heads", CLI::PositiveNumber);
  add(app, "--layers", arguments.layers, "Blocks", CLI::PositiveNumber);
  add(app, "--heads", arguments.heads, "Attention heads of a block", CLI::PositiveNumber);
  add(app, "--vocab", arguments.vocab, "Different tokens", CLI::PositiveNumber);
  add(app, "--batch", arguments.batch, "Sequences per rank and step", CLI::PositiveNumber);
  add(app, "--seq", arguments.seq, "Tokens of a sequence", CLI::PositiveNumber);
  add(app, "--steps", arguments.steps, "Steps; the first two are left out of the medians", CLI::Range(3, 1'000'000));
}

void add_flags(CLI::App& app, InterceptArguments& arguments) {
  add(app, "--rounds", arguments.rounds, "Rounds, of which the median is taken", CLI::PositiveNumber);
  add(app, "--operators", arguments.operators, "Operators in a row", CLI::PositiveNumber);
}

}  // namespace bench
