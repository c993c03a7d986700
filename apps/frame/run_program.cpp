#include "frame/run_program.h"

#include <c10/util/Exception.h>

#include <stdexcept>

#include "frame/run_tool.h"

namespace frame {

int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& run) {
  return run_tool(app, argc, argv, [&] {
    try {
      run();
    } catch (const c10::Error& error) {
      throw std::runtime_error(error.what_without_backtrace());
    }
  });
}

}  // namespace frame
