#include "runtime/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <utility>

namespace fsdp::runtime {
namespace {

namespace autograd = torch::autograd;

thread_local const SavedTensorScope* innermost_scope = nullptr;

class HookingEngine final : public autograd::Engine {
 public:
  explicit HookingEngine(autograd::Engine& engine) : engine_(engine) {}

  autograd::variable_list execute(const autograd::edge_list& roots, const autograd::variable_list& inputs,
                                  bool keep_graph, bool create_graph, bool accumulate_grad,
                                  const autograd::edge_list& outputs) override {
    return engine_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  std::unique_ptr<autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return engine_.make_anomaly_metadata();
  }
  std::unique_ptr<autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    const bool is_hooked = innermost_scope != nullptr && innermost_scope->task == autograd::get_current_graph_task_id();
    return is_hooked ? innermost_scope->make() : engine_.get_default_saved_variable_hooks();
  }

 private:
  autograd::Engine& engine_;
};

// Returns the hooking engine, which forwards to the engine that was the default when this function was first called. It
// is never destroyed, like LibTorch's own engine.
autograd::Engine& hooking_engine() {
  static auto& engine = *new HookingEngine(autograd::Engine::get_default_engine());
  return engine;
}

}  // namespace

SavedTensorScope::SavedTensorScope(std::function<Hooks()> make_hooks)
    : make(std::move(make_hooks)), task(autograd::get_current_graph_task_id()), outer(innermost_scope) {
  static std::once_flag installed;
  std::call_once(installed, [] {
    hooking_engine();
    autograd::set_default_engine_stub(&hooking_engine);
  });
  innermost_scope = this;
}

SavedTensorScope::~SavedTensorScope() { innermost_scope = outer; }

}  // namespace fsdp::runtime
