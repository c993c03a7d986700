#include <fsdp/scopes.h>

#include "runtime/param_group.h"
#include "runtime/scope.h"

namespace fsdp {

ForwardScope::ForwardScope(const Group& model) : scope_(std::make_unique<runtime::OpenScope>(model.param_groups())) {}
ForwardScope::~ForwardScope() = default;
void ForwardScope::close() { scope_.reset(); }

LocalRows::LocalRows(const Group& model) : rows_(std::make_unique<runtime::OpenLocalRows>(model.param_groups())) {}
LocalRows::~LocalRows() = default;

SummonFullParams::SummonFullParams(const Group& model)
    : summon_(std::make_unique<runtime::OpenSummon>(model.param_groups())) {}
SummonFullParams::~SummonFullParams() = default;

void SummonFullParams::write_back() { summon_->write_back(); }

}  // namespace fsdp
