#pragma once
/// \file
/// Defines what programs that use LibTorch do around their work.

#include <functional>

namespace CLI {
class App;
}

namespace frame {

/// Does what run_tool does, and prints an error of LibTorch as one sentence too, without its backtrace.
int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& run);

}  // namespace frame
