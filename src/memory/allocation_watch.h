#pragma once
/// \file
/// What a program's own operators hold.

#include <c10/util/ThreadLocalDebugInfo.h>

#include <functional>
#include <memory>

#include "memory/byte_account.h"

namespace fsdp::memory {

/// Note [What forward holds]. LibTorch has hooks for saved tensors only where there is Python. But every allocator of
/// it, of the CPU and of accelerators, tells what the calling thread has put in place for a profiler what it gives and
/// takes back, and autograd's threads inherit that from the thread that called backward. So what forward holds is known
/// by the memory: each block that was allocated outside of a backward, or in one while autograd records, which is when
/// a checkpoint runs forward again, and that has not been given back. Blocks that the library allocates for itself are
/// on its account already.
///
/// Counts these blocks as ByteClass::kForward, from now on, on this thread and in the backwards that it calls, each on
/// the account that `account` then names, which is asked on any thread and must neither lock nor allocate by LibTorch;
/// of a block that another thread gives back it does not learn. It takes the place of a profiler that counts memory.
/// What is left when it goes counts no more. It goes on the thread that made it, the last one first.
class AllocationWatch {
 public:
  using Account = std::function<const std::shared_ptr<ByteAccount>&()>;

  explicit AllocationWatch(Account account);
  ~AllocationWatch();
  AllocationWatch(const AllocationWatch&) = delete;
  AllocationWatch& operator=(const AllocationWatch&) = delete;

 private:
  class Blocks;
  std::shared_ptr<Blocks> blocks_;
  c10::DebugInfoGuard guard_;
};

}  // namespace fsdp::memory
