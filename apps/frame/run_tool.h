#pragma once
/// \file
/// What every program does around its work. Needs no LibTorch.

#include <functional>

namespace CLI {
class App;
}

namespace frame {

/// Lets `app` read the flags, then calls `run`. Returns what main is to return: 0; 2 for wrong flags; 1 if `run` throws
/// or what it printed cannot be written, e.g. because the disk is full. An error is one sentence on stderr after the
/// name of `app`.
int run_tool(CLI::App& app, int argc, char** argv, const std::function<void()>& run);

}  // namespace frame
