#pragma once
/// \file
/// What a rank without data does while others run forward and backward.

#include <functional>
#include <string>

#include "runtime/schedule.h"

namespace fsdp {
class Communicator;
}

namespace fsdp::runtime {

class ParamGroup;

/// Does what `leader` tells with its Journal until it ends: the same steps of the same groups in the same order, with
/// no gradients, as a rank whose graph leads to none of its parameters. So whatever collective comes next is known,
/// also where forward differs from step to step, or this rank never ran one.
///
/// `own`: a group of the rank whose process group `communicator` is of; `subject`: as the Journal's;
/// `broadcast_buffers` is called with the number of the group under whose module they are. Throws Mismatch if the
/// leader's step ended by an exception, and what collectives throw.
void follow(ParamGroup& own, Communicator& communicator, int leader, const std::string& subject,
            const std::function<void(GroupId)>& broadcast_buffers);

}  // namespace fsdp::runtime
