#pragma once
/// \file
/// Maps the names that flags use to the methods of sequence parallelism.

#include <fsdp/sequence_parallel.h>

#include <map>
#include <string>

namespace frame {

inline const std::map<std::string, fsdp::SequenceMethod>& sequence_methods() {
  using enum fsdp::SequenceMethod;
  static const std::map<std::string, fsdp::SequenceMethod> methods = {{"head-tail", kHeadTail},
                                                                      {"ring", kRing},
                                                                      {"gather", kGather},
                                                                      {"heads", kHeads},
                                                                      {"ring-self-attention", kRingSelfAttention}};
  return methods;
}

}  // namespace frame
