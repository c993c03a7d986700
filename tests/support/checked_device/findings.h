#pragma once
/// \file
/// What the device has found: violations, and waits of the host. Each text names the operations concerned.

#include <c10/core/Stream.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::test::checked {

enum class Fault : uint8_t {
  kUnordered,    // no order exists between two uses of the same bytes, one of which writes, on different streams
  kEarlyFree,    // memory is freed while another stream may still use it, or is used after it was freed
  kReuse,        // memory is used by its new owner while a stream may still use it for the old one
  kWrongDevice,  // another device than the tensor's is current when an operator runs or memory is allocated
  kOrder,        // ranks launch different collectives, or those of several communicators in different orders
};

struct Violation {
  Fault fault;
  std::string text;
};

/// Gives the calling thread's current activity a name, as long as the object lives.
class [[nodiscard]] Label {
 public:
  explicit Label(std::string text);
  ~Label();
  Label(const Label&) = delete;
  Label& operator=(const Label&) = delete;
};

/// Returns a text such as "aten::mul.out on stream 3 of checked:0, in 'forward', after 'group whole'". It names the
/// operation, the thread's label, and the last step of fsdp that the thread reached.
std::string place_of(const std::string& operation, const c10::Stream& stream);
/// Notes that the calling thread reached a step of fsdp; see comm/core/fault_point.h.
void note_step(const char* step);

/// Reports a violation. A violation of the same kind between the same two places is reported once.
void report(Fault fault, const std::string& first, const std::string& then, const std::string& advice);
/// Notes that the host waited for a stream.
void count_host_wait(const std::string& operation, const c10::Stream& stream);

/// These functions return what was found since their last call. Any thread may call them.
std::vector<Violation> take_violations();
std::vector<std::string> take_host_waits();

}  // namespace fsdp::test::checked
