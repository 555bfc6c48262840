// The CUDA mask kernels, emulated on the CPU by cuda_on_cpu/, give the same bits as the CPU kernels, on random calls of
// every alignment. Their speed and behaviour on a GPU are tested in tests/gpu.
#include <cstdlib>
#include <cstring>

#include "kernels/mask/token_mask.h"
#include "random_calls.h"

namespace {

using namespace weft;

std::vector<std::uint32_t> any_masks(std::int64_t words) {
  std::vector<std::uint32_t> masks(static_cast<std::size_t>(words));
  for (std::uint32_t &word : masks) word = one_of({0u, 0xffffffffu, static_cast<std::uint32_t>(g_random())});
  return masks;
}

struct Rows {
  std::vector<std::int64_t> wide;
  std::vector<std::int32_t> narrow;
  RowList list;

  Rows(std::int64_t count, std::int64_t limit) {
    if (one_of({0, 0, 1})) {  // by slot: rows use a slot's mask rows from `first` on
      const std::int64_t positions = count % 2 ? 1 : 2, first = any(0, 1), per_slot = positions + first;
      if (limit >= per_slot) {
        for (std::int64_t b = 0; b < count / positions; ++b) wide.push_back(any(0, limit / per_slot - 1));
        list = {wide.data(), true, positions, per_slot, first};
        return;
      }
    }
    for (std::int64_t i = 0; i < count; ++i) wide.push_back(any(0, limit - 1)), narrow.push_back(wide.back());
    list = coin() ? RowList{wide.data(), true} : RowList{narrow.data(), false};
  }
};

bool apply_agrees() {
  const DType dtype = one_of({DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  const std::int64_t size = dtype == DType::kFloat32 ? 4 : 2;
  const std::int64_t rows = any(1, 4), mask_rows = rows + any(0, 2), stride_beyond = any(0, 9), first = any(0, 9);
  const std::int64_t vocab = one_of<std::int64_t>({1, 3, 7, 8, 31, 32, 33, 100, 1003, 5000});
  const std::int64_t words = one_of<std::int64_t>({(vocab + 31) / 32, (vocab + 31) / 32, vocab / 64, vocab / 32 + 2});
  const auto masks = any_masks(mask_rows * (words + 1));
  // The memory is aligned to 16 bytes, so that `first` alone decides the alignment of the logits.
  const std::int64_t bytes = (first + rows * (vocab + stride_beyond)) * size;
  struct alignas(16) Sixteen {
    std::uint32_t word[4];
  };
  std::vector<Sixteen> cpu(static_cast<std::size_t>(bytes / 16 + 1));
  for (Sixteen &part : cpu) {
    for (std::uint32_t &word : part.word) word = static_cast<std::uint32_t>(g_random());
  }
  std::vector<Sixteen> cuda = cpu;

  const Rows row_list(rows, mask_rows);
  std::vector<std::int32_t> flags(static_cast<std::size_t>(mask_rows));
  for (auto &flag : flags) flag = static_cast<std::int32_t>(any(0, 3));
  std::vector<std::int64_t> d2t(static_cast<std::size_t>(vocab));
  for (auto &offset : d2t) offset = any(-vocab, 32 * words + 9);
  ApplyCall call{{nullptr, dtype, rows, vocab, vocab + stride_beyond},
                 {masks.data(), mask_rows, words, words + 1},
                 coin() ? row_list.list : RowList{nullptr, false},
                 coin() ? flags.data() : nullptr,
                 coin() ? d2t.data() : nullptr};
  call.logits.data = reinterpret_cast<char *>(cpu.data()) + first * size;
  if (apply_token_bitmask_cpu(call, 1) >= 0) return false;
  call.logits.data = reinterpret_cast<char *>(cuda.data()) + first * size;
  if (apply_token_bitmask_cuda(call, static_cast<int>(any(1, 4)), nullptr)) return false;
  return std::memcmp(cpu.data(), cuda.data(), cpu.size() * sizeof(Sixteen)) == 0;
}

bool copy_agrees() {
  const std::int64_t rows = any(1, 5), words = one_of<std::int64_t>({1, 4, 5, 64, 1028}), first = any(0, 4);
  const std::int64_t stride = words + one_of<std::int64_t>({0, 1, 4});
  const auto src = any_masks(first + rows * stride);
  std::vector<std::int32_t> src_flags(static_cast<std::size_t>(rows)), cpu_flags(src_flags.size(), 7);
  for (auto &flag : src_flags) flag = static_cast<std::int32_t>(any(0, 1));
  std::vector<std::uint32_t> cpu(static_cast<std::size_t>(rows * words)), cuda = cpu;
  std::vector<std::int32_t> cuda_flags = cpu_flags;
  const std::int64_t count = any(1, 6);
  const Rows row_list(count, rows);
  CopyCall call{cpu.data(),       src.data() + first, rows,          words, words, stride,
                cpu_flags.data(), src_flags.data(),   row_list.list, count};
  if (copy_mask_rows_cpu(call) >= 0) return false;
  call.dst_masks = cuda.data(), call.dst_token_mask = cuda_flags.data();
  if (copy_mask_rows_cuda(call, nullptr)) return false;
  return cpu == cuda && cpu_flags == cuda_flags;
}

bool rows_out_of_bounds_are_safe() {
  const auto masks = any_masks(2);
  std::vector<float> logits(3 * 64, 1.0f);
  const std::int64_t rows[] = {2, 1, -1};
  const ApplyCall call{
      {logits.data(), DType::kFloat32, 3, 64, 64}, {masks.data(), 1, 2, 2}, {rows, true}, nullptr, nullptr};
  if (apply_token_bitmask_cpu(call, 1) != 0 || apply_token_bitmask_cuda(call, 1, nullptr)) return false;
  for (const float x : logits) {
    if (x != -INFINITY) return false;
  }
  std::uint32_t dst[2] = {5, 5};
  std::int32_t flag = 5;
  const std::int32_t src_flag = 1;
  const CopyCall copy{dst, masks.data(), 1, 2, 2, 2, &flag, &src_flag, {rows, true}, 1};
  return copy_mask_rows_cpu(copy) == 0 && !copy_mask_rows_cuda(copy, nullptr) && dst[0] == 5 && flag == 5;
}

TEST_CASE("apply") { check_often(apply_agrees, 20); }
TEST_CASE("copy") { check_often(copy_agrees, 20); }
TEST_CASE("rows out of bounds") { check_often(rows_out_of_bounds_are_safe, 1); }

}  // namespace
