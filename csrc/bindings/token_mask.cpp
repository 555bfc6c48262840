// The mask kernels for Python; see bindings/logits.h for their arguments.
#include "kernels/mask/token_mask.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>

#include <stdexcept>

#include "bindings/bind.h"
#include "bindings/logits.h"
#include "kernels/kernel.h"

namespace nb = nanobind;

namespace weft {
namespace {

ApplyCall apply_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                     std::uintptr_t bitmask, std::int64_t mask_rows, std::int64_t words, std::int64_t mask_stride,
                     std::uintptr_t row_list, bool row_list_is64, std::uintptr_t token_mask, std::uintptr_t d2t) {
  return {logits_of(logits, dtype, rows, vocab, stride),
          {pointer<const std::uint32_t>(bitmask), mask_rows, words, mask_stride},
          {pointer<const void>(row_list), row_list_is64},
          pointer<const std::int32_t>(token_mask),
          pointer<const std::int64_t>(d2t)};
}

CopyCall copy_call(std::uintptr_t dst, std::uintptr_t src, std::int64_t mask_rows, std::int64_t words,
                   std::int64_t dst_stride, std::int64_t src_stride, std::uintptr_t dst_flags, std::uintptr_t src_flags,
                   std::uintptr_t row_list, bool row_list_is64, std::int64_t count, std::uintptr_t dst_temperatures,
                   std::uintptr_t src_temperatures) {
  return {pointer<std::uint32_t>(dst),
          pointer<const std::uint32_t>(src),
          mask_rows,
          words,
          dst_stride,
          src_stride,
          pointer<std::int32_t>(dst_flags),
          pointer<const std::int32_t>(src_flags),
          {pointer<const void>(row_list), row_list_is64},
          count,
          pointer<float>(dst_temperatures),
          pointer<const float>(src_temperatures)};
}

// Makes an ApplyCall in the by-slot form; see RowList.
ApplyCall apply_slots_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                           std::uintptr_t masks, std::int64_t mask_rows, std::int64_t words, std::int64_t mask_stride,
                           std::uintptr_t flags, std::uintptr_t slots, std::int64_t positions, std::int64_t per_slot,
                           std::int64_t first, std::uintptr_t d2t) {
  return {logits_of(logits, dtype, rows, vocab, stride),
          {pointer<const std::uint32_t>(masks), mask_rows, words, mask_stride},
          {pointer<const void>(slots), true, positions, per_slot, first},
          pointer<const std::int32_t>(flags),
          pointer<const std::int64_t>(d2t)};
}

CopyCall copy_slots_call(std::uintptr_t dst, std::uintptr_t src, std::int64_t mask_rows, std::int64_t words,
                         std::int64_t dst_stride, std::int64_t src_stride, std::uintptr_t dst_flags,
                         std::uintptr_t src_flags, std::uintptr_t dst_temperatures, std::uintptr_t src_temperatures,
                         std::uintptr_t slots, std::int64_t num_slots, std::int64_t positions, std::int64_t per_slot,
                         std::int64_t first) {
  CopyCall call = copy_call(dst, src, mask_rows, words, dst_stride, src_stride, dst_flags, src_flags, slots, true,
                            num_slots * positions, dst_temperatures, src_temperatures);
  call.rows.positions = positions, call.rows.per_slot = per_slot, call.rows.first = first;
  return call;
}

void require_rows(std::int64_t bad) {
  if (bad >= 0) throw std::out_of_range("some mask rows are not among the masks");
}

}  // namespace

void bind_token_mask(nb::module_ &m) {
  m.def("cuda_architectures", &cuda_architectures);  // "" without CUDA kernels

  nb::class_<ApplyCall>(m, "ApplyCall");
  m.def("apply_slots_call", &apply_slots_call);
  m.def("apply_rows_call", &apply_call);
  m.def("apply_slot_masks_cpu", [](const ApplyCall &call, int threads) {
    return kernel_of([call, threads] { require_rows(apply_token_bitmask_cpu(call, threads)); });
  });
  m.def("apply_slot_masks_cuda", [](const ApplyCall &call, int sms, std::uintptr_t stream) {
    const nb::gil_scoped_release release;
    return apply_token_bitmask_cuda(call, sms, pointer<void>(stream));
  });
  nb::class_<CopyCall>(m, "MaskCopyCall");
  m.def("copy_slots_call", &copy_slots_call);
  m.def("copy_rows_call", &copy_call);
  m.def("copy_slot_masks_cpu",
        [](const CopyCall &call) { return kernel_of([call] { require_rows(copy_mask_rows_cpu(call)); }); });
  m.def("copy_slot_masks_cuda", [](const CopyCall &call, std::uintptr_t stream) {
    const nb::gil_scoped_release release;
    return copy_mask_rows_cuda(call, pointer<void>(stream));
  });

  m.def("apply_token_bitmask_cpu",
        [](std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
           std::uintptr_t bitmask, std::int64_t mask_rows, std::int64_t words, std::int64_t mask_stride,
           std::uintptr_t row_list, bool row_list_is64, std::uintptr_t token_mask, std::uintptr_t d2t, int threads) {
          const ApplyCall call = apply_call(logits, dtype, rows, vocab, stride, bitmask, mask_rows, words, mask_stride,
                                            row_list, row_list_is64, token_mask, d2t);
          return run(rows * vocab, [&] { return apply_token_bitmask_cpu(call, threads); });
        });
  m.def("apply_token_bitmask_cuda",
        [](std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
           std::uintptr_t bitmask, std::int64_t mask_rows, std::int64_t words, std::int64_t mask_stride,
           std::uintptr_t row_list, bool row_list_is64, std::uintptr_t token_mask, std::uintptr_t d2t, int sms,
           std::uintptr_t stream) {
          const ApplyCall call = apply_call(logits, dtype, rows, vocab, stride, bitmask, mask_rows, words, mask_stride,
                                            row_list, row_list_is64, token_mask, d2t);
          const nb::gil_scoped_release release;
          return apply_token_bitmask_cuda(call, sms, pointer<void>(stream));
        });

  m.def("copy_mask_rows_cpu",
        [](std::uintptr_t dst, std::uintptr_t src, std::int64_t mask_rows, std::int64_t words, std::int64_t dst_stride,
           std::int64_t src_stride, std::uintptr_t dst_flags, std::uintptr_t src_flags, std::uintptr_t row_list,
           bool row_list_is64, std::int64_t count, std::uintptr_t dst_temperatures, std::uintptr_t src_temperatures) {
          const CopyCall call = copy_call(dst, src, mask_rows, words, dst_stride, src_stride, dst_flags, src_flags,
                                          row_list, row_list_is64, count, dst_temperatures, src_temperatures);
          return run(count * words, [&] { return copy_mask_rows_cpu(call); });
        });
  m.def("copy_mask_rows_cuda",
        [](std::uintptr_t dst, std::uintptr_t src, std::int64_t mask_rows, std::int64_t words, std::int64_t dst_stride,
           std::int64_t src_stride, std::uintptr_t dst_flags, std::uintptr_t src_flags, std::uintptr_t row_list,
           bool row_list_is64, std::int64_t count, std::uintptr_t dst_temperatures, std::uintptr_t src_temperatures,
           std::uintptr_t stream) {
          const CopyCall call = copy_call(dst, src, mask_rows, words, dst_stride, src_stride, dst_flags, src_flags,
                                          row_list, row_list_is64, count, dst_temperatures, src_temperatures);
          const nb::gil_scoped_release release;
          return copy_mask_rows_cuda(call, pointer<void>(stream));
        });
}

}  // namespace weft
