#pragma once
/// \file
/// Runs programs that use LibTorch: reads their flags, prints their errors and chooses their exit status.

#include <functional>

namespace CLI {
class App;
}

namespace frame {

/// Does what run_tool does. Errors of LibTorch are printed without their backtraces.
int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& run);

}  // namespace frame
