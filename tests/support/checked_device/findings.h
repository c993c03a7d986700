#pragma once
/// \file
/// What the device found: violations, and waits of the host. Each text names the operations concerned.

#include <c10/core/Stream.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::test::checked {

enum class Fault : uint8_t {
  kUnordered,    // two uses of the same bytes, one of which writes, without an order between their streams
  kEarlyFree,    // memory is given back while a stream other than its own may still use it, or used afterwards
  kReuse,        // memory that was handed out again is used while a stream may still use it from before
  kWrongDevice,  // an operator runs, or memory was taken, while another device than the tensor's is the current one
  kOrder,        // ranks launch different collectives of a communicator, or those of several in different orders
};

struct Violation {
  Fault fault;
  std::string text;
};

/// Names what the calling thread is doing, as long as the object lives.
class [[nodiscard]] Label {
 public:
  explicit Label(std::string text);
  ~Label();
  Label(const Label&) = delete;
  Label& operator=(const Label&) = delete;
};

/// "aten::mul.out on stream 3 of checked:0, in 'forward', after 'group whole'": the operation, the thread's label, and
/// the fsdp step that the thread reached last.
std::string place_of(const std::string& operation, const c10::Stream& stream);
/// Notes that the calling thread reached a step of fsdp; see comm/fault_point.h.
void note_step(const char* step);

/// Reports a violation. The same violation between the same places is reported once.
void report(Fault fault, const std::string& first, const std::string& then, const std::string& advice);
/// Notes that the host waited for a stream.
void count_host_wait(const std::string& operation, const c10::Stream& stream);

/// These return what was found since the last call. Any thread may call them.
std::vector<Violation> take_violations();
std::vector<std::string> take_host_waits();

}  // namespace fsdp::test::checked
