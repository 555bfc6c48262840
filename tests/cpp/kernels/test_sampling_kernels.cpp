// The CUDA sampling kernels, emulated on the CPU by cuda_on_cpu/, give the same bits as the CPU kernels.
#include <cstdlib>
#include <cstring>

#include "kernels/sampling/inputs.h"
#include "random_sampling.h"
#include "sampling_parts.h"

namespace {

using namespace weft;

unsigned any_team() { return one_of({1u, 2u, 4u, 8u}); }

bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool sample_agrees() {
  AnySampling any_call;
  sample_cpu(any_call.call, 1);
  std::vector<std::int64_t> cuda(any_call.out.size(), -7);
  any_call.call.out = cuda.data();
  sample_on_cuda(any_call.call, any_team());
  return any_call.out == cuda;
}

bool truncation_agrees() {
  AnyTruncation any_call;
  truncation_floor_cpu(any_call.call, 1);
  std::vector<float> cuda(any_call.floor.size(), -7.0f);
  any_call.call.floor = cuda.data();
  truncation_floor_on_cuda(any_call.call, any_team());
  return same_bits(any_call.floor, cuda);
}

bool penalties_agree() {
  AnyPenalties any_call;
  AnyLogits cuda = any_call.logits;
  penalize_cpu(any_call.call, 1);
  any_call.call.logits = cuda.view();
  penalize_on_cuda(any_call.call, any_team());
  return any_call.logits == cuda;
}

bool levelling_agrees() {
  AnyPenalties any_call;
  penalize_cpu(any_call.call, 1);
  AnyLogits cuda = any_call.logits;
  level_cpu(any_call.level, 1);
  LevelCall call = any_call.level;
  call.logits = cuda.view();
  level_on_cuda(call, any_team());
  return any_call.logits == cuda;
}

bool suppression_agrees() {
  AnySuppression any_call;
  AnyLogits cuda = any_call.logits;
  suppress_ends_cpu(any_call.call, 1);
  any_call.call.logits = cuda.view();
  suppress_ends_on_cuda(any_call.call, any_team());
  return any_call.logits == cuda;
}

bool slots_agree() {
  AnySlots any_call;
  AnyLogits cuda = any_call.logits;
  auto out = any_call.out;
  auto drafts = any_call.drafts, drafts_host = any_call.drafts_host;
  SlotCall call = any_call.call;
  sample_slots_cpu(any_call.call, 1);
  call.logits = cuda.view(), call.out = out.data();
  if (any_call.is_draft) {
    call.extra = drafts.data();
    call.drafts = drafts.data() + (any_call.number - 1) * any_call.p.slots;
    call.drafts_host = drafts_host.data() + (any_call.number - 1) * any_call.p.slots;
  }
  if (sample_slots_cuda(call, static_cast<int>(any(1, 9)), nullptr)) return false;
  return any_call.logits == cuda && any_call.out == out && any_call.drafts == drafts &&
         any_call.drafts_host == drafts && drafts_host == drafts;
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
                any_call.p.slots,     any_call.slot.data(), any_call.p.tables.records.data()};
  keep_logits_cpu(call);
  call.to = cuda.data();
  return !keep_logits_cuda(call, nullptr) && same_bits(cpu, cuda);
}

std::vector<std::int64_t> some(std::int64_t count, std::int64_t low, std::int64_t high) {
  return filled<std::int64_t>(count, [=] { return any(low, high); });
}

bool opening_agrees() {
  const std::int64_t rows = any(1, 4), slots = any(5, 7), table = one_of<std::int64_t>({1, 4, 5, 300});
  const std::int64_t max_drafts = any(1, 4), width = max_drafts + 1,
                     size = 5 + sizeof(SlotRecord) / 8 + (table + 1) / 2;
  auto records = some(rows * size, -(1ll << 62), 1ll << 62);
  for (std::int64_t b = 0; b < rows; ++b)  // the last slot and -1 are skipped
    records[static_cast<std::size_t>(b * size)] = b == 0 ? one_of<std::int64_t>({-1, slots - 1, slots}) : b;
  struct State {
    std::vector<std::int64_t> numbers, drafts;
    std::vector<std::int32_t> page_table, token_mask;
    std::vector<SlotRecord> params;
    std::vector<float> temperatures;
  };
  const auto params = filled<SlotRecord>(slots, any_record);
  const auto state = [&] {
    return State{filled<std::int64_t>(5 * slots, [] { return -7; }),
                 filled<std::int64_t>(max_drafts * slots, [] { return -7; }),
                 filled<std::int32_t>(table * slots, [] { return -7; }),
                 filled<std::int32_t>(width * slots, [] { return -7; }),
                 params,
                 filled<float>(width * slots, [] { return 7; })};
  };
  State cpu = state(), cuda = state();
  const auto call = [&](State &s) {
    std::int64_t *n = s.numbers.data();
    return OpenCall{rows,
                    size,
                    slots,
                    table,
                    max_drafts,
                    width,
                    width,
                    records.data(),
                    n,
                    n + slots,
                    n + 2 * slots,
                    n + 3 * slots,
                    s.page_table.data(),
                    s.params.data(),
                    n + 4 * slots,
                    s.drafts.data(),
                    s.token_mask.data(),
                    s.temperatures.data()};
  };
  open_slots_cpu(call(cpu));
  if (open_slots_cuda(call(cuda), nullptr)) return false;
  return cpu.numbers == cuda.numbers && cpu.drafts == cuda.drafts && cpu.page_table == cuda.page_table &&
         cpu.token_mask == cuda.token_mask && same_records(cpu.params, cuda.params) &&
         same_bits(cpu.temperatures, cuda.temperatures);
}

bool inputs_agree() {
  const std::int64_t rows = any(1, 5), sampling_rows = any(0, rows), width = any(1, 4), slots = any(2, 6),
                     table = one_of<std::int64_t>({1, 3, 200});
  const auto slot = some(rows, -1, slots), length = some(slots, 0, 99), last = some(slots, 0, 99);
  const auto drafts = some(width * slots, -1, 99);
  const auto pages = some(slots * table, 0, 99);
  const std::vector<std::int32_t> page_table(pages.begin(), pages.end());
  struct Out {
    std::vector<std::int64_t> base, tokens;
    std::vector<std::int32_t> pages;
    bool operator==(const Out &) const = default;
  };
  const auto sizes = [&] {
    return Out{some(rows, 7, 7), some(rows * width, 7, 7),
               std::vector<std::int32_t>(static_cast<std::size_t>(rows * table))};
  };
  Out cpu = sizes(), cuda = sizes();
  const auto call = [&](Out &out) {
    return InputsCall{rows,
                      sampling_rows,
                      width,
                      slots,
                      table,
                      slot.data(),
                      length.data(),
                      last.data(),
                      drafts.data(),
                      page_table.data(),
                      out.base.data(),
                      out.tokens.data(),
                      out.pages.data()};
  };
  read_slots_cpu(call(cpu));
  return !read_slots_cuda(call(cuda), nullptr) && cpu == cuda;
}

bool proposals_agree() {
  const std::int64_t rows = any(1, 5), num_drafts = any(1, 4), slots = any(5, 7);
  std::vector<std::int64_t> slot, proposed(static_cast<std::size_t>(num_drafts * slots)), cpu(proposed.size(), 7),
      cuda = cpu;
  std::vector<SlotRecord> records(static_cast<std::size_t>(slots));
  for (std::int64_t b = 0; b < rows; ++b) slot.push_back(b == 0 ? -1 : b);  // -1 is no slot
  for (auto &token : proposed) token = any(-1, 99);
  for (auto &record : records) record.max_drafts = static_cast<std::int32_t>(any(0, 5));
  ProposalsCall call{rows, num_drafts, slots, slot.data(), proposed.data(), records.data(), cpu.data()};
  take_proposals_cpu(call);
  call.drafts = cuda.data();
  return !take_proposals_cuda(call, nullptr) && cpu == cuda;
}

TEST_CASE("sample") { check_often(sample_agrees, 20); }
TEST_CASE("truncation") { check_often(truncation_agrees, 10); }
TEST_CASE("penalties") { check_often(penalties_agree, 20); }
TEST_CASE("levelling") { check_often(levelling_agrees, 20); }
TEST_CASE("suppression") { check_often(suppression_agrees, 20); }
TEST_CASE("slots") { check_often(slots_agree, 20); }
TEST_CASE("advancing") { check_often(advancing_agrees, 20); }
TEST_CASE("keeping") { check_often(keeping_agrees, 20); }
TEST_CASE("opening") { check_often(opening_agrees, 20); }
TEST_CASE("inputs") { check_often(inputs_agree, 20); }
TEST_CASE("proposals") { check_often(proposals_agree, 20); }

}  // namespace
