#include "frame/run_tool.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <stdexcept>

#include "comm/posix/descriptor.h"

namespace frame {
namespace {

constexpr int kFailed = 1, kWrongFlags = 2;

int fail(const CLI::App& app, const char* why, int status) {
  std::cerr << app.get_name() << ": " << why << std::endl;
  return status;
}

}  // namespace

int run_tool(CLI::App& app, int argc, char** argv, const std::function<void()>& run) {
  fsdp::open_standard_streams();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const std::exception& error) {
    return fail(app, error.what(), kWrongFlags);
  }
  try {
    run();
    if (!std::cout.flush())
      throw std::runtime_error(
          "cannot write to standard output: the program that reads it has ended, or the disk is full");
    return 0;
  } catch (const std::exception& error) {
    return fail(app, error.what(), kFailed);
  }
}

}  // namespace frame
