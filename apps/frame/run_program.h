#pragma once
/// \file
/// What programs that use LibTorch do around their work.

#include <functional>

namespace CLI {
class App;
}

namespace frame {

/// run_tool, with LibTorch's errors as one sentence too.
int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& run);

}  // namespace frame
