#pragma once
/// \file
/// The flags --fp16, --bf16 and --autocast, alike in all programs that train.

#include <cstdint>
#include <optional>

namespace CLI {
class App;
}
namespace c10 {
struct Device;
enum class DeviceType : int8_t;
}  // namespace c10
namespace fsdp {
class GradScaler;
struct MixedPrecisionPolicy;
}  // namespace fsdp

namespace frame {

struct PrecisionFlags {
  bool fp16 = false, bf16 = false, autocast = false;
};

/// Of --fp16 and --bf16 one may be given.
void add_precision_flags(CLI::App& app, PrecisionFlags& flags);

/// What is gathered and computed with is fp16 or bf16, --autocast alone is bf16. Gradients of bf16 are summed in fp32,
/// of fp16 in fp16. Results are fp32, for losses. None without flags.
std::optional<fsdp::MixedPrecisionPolicy> precision_policy(const PrecisionFlags& flags);

/// Enabled with --fp16.
fsdp::GradScaler make_scaler(const PrecisionFlags& flags);

/// While it lives, the thread's operators choose their dtype by LibTorch's autocast, if --autocast is given.
class Autocast {
 public:
  Autocast(const PrecisionFlags& flags, c10::Device device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const std::optional<c10::DeviceType> type_;
};

}  // namespace frame
