// fsdp-ckpt inspects checkpoints, verifies them, and converts them.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "frame/flag_checks.h"
#include "frame/run_tool.h"
#include "report.h"

namespace {

struct Arguments {
  std::string path, other, dtype;
  bool as_json = false, training = false;
  int ranks = 1;
  std::optional<int64_t> step = std::nullopt;
};

CLI::App* command(CLI::App& app, const char* name, const char* help, Arguments& arguments) {
  auto* added = app.add_subcommand(name, help);
  added
      ->add_option("path", arguments.path,
                   "A checkpoint, a run's folder (its newest checkpoint is used), or a safetensors file")
      ->required()
      ->check(frame::path());
  added->add_flag("--json", arguments.as_json, "Print JSON");
  return added;
}

void add_other(CLI::App* command, Arguments& arguments, const char* help) {
  command->add_option("other", arguments.other, help)->required()->check(frame::path());
}

void add_checkpoint(CLI::App* command, Arguments& arguments) {
  add_other(command, arguments, "The run's folder to which the checkpoint is written");
  command->add_option("--ranks", arguments.ranks, "Number of ranks for which the checkpoint's files are written (1)")
      ->check(CLI::Range(1, 99999));
  command->add_option("--step", arguments.step, "Step of the written checkpoint (that of PATH; 0 if PATH is a file)")
      ->check(frame::count_or_none());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Inspects, verifies, compares and converts checkpoints. Exit status: 0 for success; 1 for an error, a damaged\n"
      "checkpoint or tensors that differ; 2 for wrong flags.",
      "fsdp-ckpt");
  app.require_subcommand(1);
  Arguments arguments;
  const auto* info = command(app, "info", "Prints the contents of PATH", arguments);
  const auto* verify =
      command(app, "verify", "Compares all bytes with their checksums; in a run's folder, those of every checkpoint",
              arguments);
  auto* diff = command(app, "diff", "Prints the largest difference of each tensor", arguments);
  add_other(diff, arguments, "What PATH is compared with: a checkpoint, a run's folder or a safetensors file");
  diff->add_flag("--training", arguments.training, "Also compare the optimizer's state and the ranks' random states");
  auto* exporting = command(app, "export", "Writes the model's whole tensors to one safetensors file", arguments);
  add_other(exporting, arguments, "The safetensors file to write");
  exporting->add_option("--dtype", arguments.dtype, "dtype of the floating point tensors in the file (unchanged)")
      ->check(CLI::IsMember({"F64", "F32", "F16", "BF16"}));
  auto* importing = command(app, "import", "Makes a checkpoint from a safetensors file of whole tensors", arguments);
  add_checkpoint(importing, arguments);
  auto* reshard = command(app, "reshard", "Writes a checkpoint's files for a different number of ranks", arguments);
  add_checkpoint(reshard, arguments);

  bool is_well = true;
  const int status = frame::run_tool(app, argc, argv, [&] {
    if (*verify) {
      is_well = ckpt::print_problems(arguments.path, arguments.as_json);
      return;
    }
    const auto source = ckpt::open_source(arguments.path);
    if (*info) ckpt::print_info(*source, arguments.as_json);
    if (*diff)
      is_well = ckpt::print_differences(ckpt::compare(*source, *ckpt::open_source(arguments.other), arguments.training),
                                        arguments.as_json);
    if (*exporting)
      ckpt::print_written(ckpt::export_to(*source, arguments.other, fsdp::state::dtype_named(arguments.dtype)),
                          arguments.as_json);
    if (*importing || *reshard)
      ckpt::print_written(ckpt::reshard_to(*source, arguments.other, arguments.ranks, arguments.step),
                          arguments.as_json);
  });
  return status == 0 && !is_well ? 1 : status;
}
