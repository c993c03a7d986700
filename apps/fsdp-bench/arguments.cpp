#include "arguments.h"

#include <CLI/CLI.hpp>

namespace bench {
namespace {

template <class Value>
void add(CLI::App& app, const char* flag, Value& value, const char* help, const CLI::Validator& check) {
  app.add_option(flag, value, help)->check(check)->capture_default_str();
}

}  // namespace

void add_flags(CLI::App& app, StepArguments& arguments) {
  const CLI::PositiveNumber positive;
  add(app, "--world", arguments.world, "Ranks, each a process with one thread", positive);
  add(app, "--backend", arguments.backend, "How ranks communicate", CLI::IsMember({"auto", "gloo", "nccl"}));
  add(app, "--engine", arguments.engine, "fsdp, or none: every rank trains alone", CLI::IsMember({"fsdp", "none"}));
  add(app, "--reshard", arguments.reshard, "Freeing of whole parameters after forward; default: not of the outermost group",
      CLI::IsMember({"default", "always", "never"}));
  add(app, "--dim", arguments.dim, "Width of the model, a multiple of --heads", positive);
  add(app, "--layers", arguments.layers, "Blocks", positive);
  add(app, "--heads", arguments.heads, "Attention heads of a block", positive);
  add(app, "--vocab", arguments.vocab, "Different tokens", positive);
  add(app, "--batch", arguments.batch, "Sequences per rank and step", positive);
  add(app, "--seq", arguments.seq, "Tokens of a sequence", positive);
  add(app, "--steps", arguments.steps, "Steps; the first two are left out of the medians", CLI::Range(3, 1'000'000));
}

void add_flags(CLI::App& app, InterceptArguments& arguments) {
  const CLI::PositiveNumber positive;
  add(app, "--rounds", arguments.rounds, "Rounds, of which the median is taken", positive);
  add(app, "--operators", arguments.operators, "Operators in a row", positive);
}

}  // namespace bench
