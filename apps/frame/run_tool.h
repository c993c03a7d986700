#pragma once
/// \file
/// Runs programs: reads their flags, prints their errors and chooses their exit status. Does not need LibTorch.

#include <functional>

namespace CLI {
class App;
}

namespace frame {

/// Lets `app` read the flags, then calls `run`. Returns the exit status for main: 0 after success; 2 after wrong flags;
/// 1 if `run` throws or its output cannot be written, e.g. because the disk is full. An error is printed to stderr as
/// one sentence after the name of `app`.
int run_tool(CLI::App& app, int argc, char** argv, const std::function<void()>& run);

}  // namespace frame
