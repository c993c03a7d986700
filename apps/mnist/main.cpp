// fsdp-mnist trains a network on handwritten digits. The network is sharded over all ranks. README.md beside this file
// describes the program.
#include <fsdp/process_group.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "arguments.h"
#include "compare.h"
#include "data.h"
#include "frame/run_program.h"
#include "report.h"
#include "run.h"
#include "saving.h"

namespace mnist {
namespace {

void join_ranks(const Arguments& arguments) {
  const bool on_gpu = !arguments.no_cuda && torch::cuda::is_available();
  fsdp::init_process_group({.backend = on_gpu ? "nccl" : "cpu"});
}

void run_one(const Arguments& arguments, const Parts& parts) {
  const Run run = train_and_test(arguments, parts);
  const std::string memory = peak_memory_text(run.model);
  if (fsdp::rank() == 0)
    std::cout << "Elapsed: " << std::fixed << std::setprecision(2) << run.seconds << " s\n" << memory << std::endl;
  if (arguments.save_model) save_model(run.model, "mnist_cnn.pt");
}

void run(const Arguments& arguments) {
  torch::set_num_threads(static_cast<int>(arguments.threads));
  const Parts parts = load_images(arguments);
  join_ranks(arguments);
  if (arguments.compare)
    compare(arguments, parts);
  else
    run_one(arguments, parts);
  fsdp::destroy_process_group();
}

}  // namespace
}  // namespace mnist

int main(int argc, char** argv) {
  CLI::App app("Trains a network on handwritten digits. The network is sharded over all ranks that are started.",
               "fsdp-mnist");
  mnist::Arguments arguments;
  mnist::add_flags(app, arguments);
  return frame::run_program(app, argc, argv, [&] { mnist::run(arguments); });
}
