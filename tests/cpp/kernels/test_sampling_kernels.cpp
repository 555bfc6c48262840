// The CUDA kernels of sampling, run on the CPU by cuda_on_cpu/, against the CPU's own: equal in every bit.
#include <cstdlib>

#include "random_sampling.h"

namespace {

using namespace weft;

bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool sample_agrees() {
  AnySampling any_call;
  sample_cpu(any_call.call, 1);
  const int sms = static_cast<int>(any(1, 4));
  std::vector<std::uint64_t> workspace(
      static_cast<std::size_t>(any_call.rows * sample_splits_cuda(any_call.rows, any_call.vocab, sms)));
  std::vector<std::int64_t> cuda(any_call.out.size(), -7);
  any_call.call.out = cuda.data();
  return !sample_cuda(any_call.call, sms, workspace.data(), nullptr) && any_call.out == cuda;
}

bool truncation_agrees() {
  AnyTruncation any_call;
  truncation_floor_cpu(any_call.call, 1);
  std::vector<float> cuda(any_call.floor.size(), -7.0f);
  any_call.call.floor = cuda.data();
  return !truncation_floor_cuda(any_call.call, nullptr) && same_bits(any_call.floor, cuda);
}

bool penalties_agree() {
  AnyPenalties any_call;
  AnyLogits cuda = any_call.logits;
  penalize_cpu(any_call.call, 1);
  any_call.call.logits = cuda.view();
  return !penalize_cuda(any_call.call, static_cast<int>(any(1, 4)), nullptr) && any_call.logits == cuda;
}

bool suppression_agrees() {
  AnySuppression any_call;
  AnyLogits cuda = any_call.logits;
  suppress_ends_cpu(any_call.call, 1);
  any_call.call.logits = cuda.view();
  return !suppress_ends_cuda(any_call.call, nullptr) && any_call.logits == cuda;
}

bool slots_agree() {
  AnySlots any_call;
  AnyLogits cuda = any_call.logits;
  auto out = any_call.out;
  auto drafts = any_call.drafts;
  SlotCall call = any_call.call;
  sample_slots_cpu(any_call.call, 1);
  call.logits = cuda.view(), call.out = out.data();
  if (any_call.is_draft) {
    call.extra = drafts.data();
    call.drafts = drafts.data() + (any_call.number - 1) * any_call.p.slots;
  }
  const int sms = static_cast<int>(any(1, 4));
  std::vector<std::uint64_t> workspace(static_cast<std::size_t>(sample_slots_workspace_cuda(call, sms) / 8));
  if (sample_slots_cuda(call, sms, workspace.data(), nullptr)) return false;
  return any_call.logits == cuda && any_call.out == out && any_call.drafts == drafts;
}

bool advancing_agrees() {
  AnyAdvance cpu;
  AnyAdvance cuda = cpu;
  const bool is_counted = coin();
  advance_slots_cpu(cpu.call(is_counted));
  return !advance_slots_cuda(cuda.call(is_counted), nullptr) && cpu == cuda;
}

bool keeping_agrees() {
  AnySlots any_call;
  const std::int64_t rows = any_call.batch * any_call.positions;
  std::vector<float> cpu(static_cast<std::size_t>(rows * any_call.p.vocab), 7.0f), cuda = cpu;
  KeepCall call{any_call.call.logits, cpu.data(),           any_call.positions,
                any_call.p.slots,     any_call.slot.data(), any_call.p.active.data()};
  keep_logits_cpu(call);
  call.to = cuda.data();
  return !keep_logits_cuda(call, nullptr) && same_bits(cpu, cuda);
}

}  // namespace

int main(int argc, char **argv) {
  const int times = argc > 1 ? std::atoi(argv[1]) : 20;
  return check("sample", sample_agrees, times) | check("truncation", truncation_agrees, times / 2) |
         check("penalties", penalties_agree, times) | check("suppression", suppression_agrees, times) |
         check("slots", slots_agree, times) | check("advancing", advancing_agrees, times) |
         check("keeping", keeping_agrees, times);
}
