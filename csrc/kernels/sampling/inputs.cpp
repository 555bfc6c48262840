#include "kernels/sampling/inputs.h"

#include <algorithm>

namespace weft {

void open_slots_cpu(const OpenCall &call) {
  for (std::int64_t b = 0; b < call.rows; ++b) call.open_row(b, 0, 1);
}

void read_slots_cpu(const InputsCall &call) {
  for (std::int64_t b = 0; b < call.rows; ++b) {
    call.read_row(b);
    std::copy_n(call.page_table + call.slot_of(b) * call.table_width, call.table_width,
                call.pages + b * call.table_width);
  }
}

void take_proposals_cpu(const ProposalsCall &call) {
  for (std::int64_t b = 0; b < call.rows; ++b) call.take_row(b);
}

#if !defined(WEFT_WITH_CUDA)
const char *open_slots_cuda(const OpenCall &, void *) { return "built without CUDA"; }
const char *read_slots_cuda(const InputsCall &, void *) { return "built without CUDA"; }
const char *take_proposals_cuda(const ProposalsCall &, void *) { return "built without CUDA"; }
#endif

}  // namespace weft
