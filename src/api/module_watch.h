#pragma once
/// \file
/// Whether a sharded module still has the parameters that it had.

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace fsdp {

/// Finds parameters that came under modules after they were sharded and are in no group: each rank would train its own.
/// Looking again costs a pointer for each parameter and module; names are made only where something differs. Thread
/// safety: under the rank's lock.
class ModuleWatch {
 public:
  /// A module that shared pointers own may go; any other has to live as long as the watch is asked.
  explicit ModuleWatch(const std::vector<torch::nn::Module*>& modules);

  /// Whether the module at this address is one of them or inside one.
  bool has(const void* module) const;

  /// The first parameter that was not there last time, is in no group, and that no call was told to ignore; empty if
  /// there is none. Tells of each parameter once, so that a program that means it can go on.
  std::string find_stray();

 private:
  struct Watched {
    torch::nn::Module* module;
    std::weak_ptr<torch::nn::Module> owner;
    bool is_owned;
  };
  std::vector<torch::nn::Module*> living() const;

  std::vector<Watched> modules_;
  /// Seen last, in the order of the tree. Weak: another parameter must not come to lie at the address of one that is
  /// gone.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> parameters_;
};

}  // namespace fsdp
