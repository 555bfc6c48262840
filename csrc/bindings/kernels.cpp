// Kernels for Python. `weft.ops` checks tensors and passes their addresses and sizes. For the CPU it receives a Kernel,
// which runs immediately (`run`) or as a graph node (`launch_kernel`). A kernel on CUDA is enqueued at once.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/bind.h"
#include "bindings/logits.h"
#include "driver/error.h"
#include "hostfunc/host_task.h"
#include "kernels/kernel.h"
#include "kernels/layer/attend.h"
#include "kernels/layer/blocks.h"
#include "kernels/layer/choose.h"
#include "kernels/layer/convolve.h"
#include "kernels/layer/experts.h"
#include "kernels/layer/gated_norm.h"
#include "kernels/layer/latent.h"
#include "kernels/layer/linear.h"
#include "kernels/layer/pack.h"
#include "kernels/layer/pack_blocks.h"
#include "kernels/layer/recur.h"
#include "kernels/layer/rows.h"
#include "kernels/sampling/inputs.h"
#include "support/instruction_set.h"

namespace nb = nanobind;

namespace weft {
namespace {

using Address = std::uintptr_t;
using Made = std::unique_ptr<Kernel>;

// out = x + norm(rows), `count` rows of `width` floats.
NormCall add_norm_call(Address x, std::int64_t x_row, Address rows, std::int64_t rows_row, Address weight, float eps,
                       Address out, std::int64_t out_row, std::int64_t count, std::int64_t width, Address live) {
  return {pointer<const float>(rows),
          pointer<const float>(weight),
          pointer<float>(out),
          count,
          width,
          rows_row,
          out_row,
          eps,
          pointer<const std::int64_t>(live),
          pointer<const float>(x),
          x_row};
}

Made add_norm(Address x, Address rows, Address weight, Address out, std::int64_t count, std::int64_t width,
              std::int64_t x_row, std::int64_t rows_row, std::int64_t out_row, float eps, int threads, Address live) {
  const NormCall call = add_norm_call(x, x_row, rows, rows_row, weight, eps, out, out_row, count, width, live);
  return kernel_of([call, threads] { rms_norm_cpu(call, threads); });
}

// The parts of a matrix at `memory`, from five numbers for each: format, outputs, the offset of its panels in bytes,
// activations, and the row of its order in `orders` [.., inputs] or -1. Returns their number.
int set_parts(Address memory, const std::vector<std::int64_t> &numbers, Part *parts, std::size_t max_parts,
              Address orders = 0, std::int64_t inputs = 0) {
  constexpr std::size_t kNumbers = 5;
  if (numbers.size() % kNumbers != 0 || numbers.empty() || numbers.size() / kNumbers > max_parts)
    throw std::invalid_argument("a matrix has at most " + std::to_string(max_parts) + " parts, of five numbers each");
  const std::size_t count = numbers.size() / kNumbers;
  for (std::size_t p = 0; p < count; ++p) {
    const std::int64_t *part = &numbers[kNumbers * p];
    if (part[4] >= 0 && !orders) throw std::invalid_argument("a part names an order, and there are none");
    parts[p] = {pointer<const char>(memory) + part[2], static_cast<Format>(part[0]), static_cast<Activations>(part[3]),
                part[1], part[4] < 0 ? nullptr : pointer<const std::int32_t>(orders) + part[4] * inputs};
  }
  return static_cast<int>(count);
}

Made linear(Address x, Address memory, const std::vector<std::int64_t> &parts, Address orders, Address bias,
            Address norm, Address residual, Address out, Address also, std::int64_t rows, std::int64_t inputs,
            std::int64_t outputs, std::int64_t x_row, std::int64_t residual_row, std::int64_t out_row,
            std::int64_t also_row, float eps, bool gated, int function, float slope, float limit, float shift,
            float scale, float softcap, int threads, Address live, Address added, Address added_norm,
            std::int64_t added_row, float added_eps, Address total, std::int64_t total_row) {
  LinearCall call{};
  call.x = pointer<const float>(x), call.num_parts = set_parts(memory, parts, call.parts, kMaxParts, orders, inputs);
  call.bias = pointer<const float>(bias), call.norm = pointer<const float>(norm);
  call.residual = pointer<const float>(residual), call.out = pointer<float>(out);
  call.also = pointer<float>(also);
  call.rows = rows, call.inputs = inputs, call.outputs = outputs;
  call.x_row = x_row, call.residual_row = residual_row, call.out_row = out_row;
  call.also_row = also_row;
  call.eps = eps, call.gated = gated, call.threads = threads;
  call.activation = {static_cast<Function>(function), slope, limit, shift};
  call.scale = scale, call.softcap = softcap;
  call.live = pointer<const std::int64_t>(live);
  if (!added) return kernel_of([call] { linear_cpu(call); });
  const NormCall sum =
      add_norm_call(x, x_row, added, added_row, added_norm, added_eps, total, total_row, rows, inputs, live);
  call.x = sum.out, call.x_row = total_row;
  return kernel_of([call, sum] {
    rms_norm_cpu(sum, call.threads);
    linear_cpu(call);
  });
}

Made experts(Address x, Address index, Address weights, Address out, Address up,
             const std::vector<std::int64_t> &up_parts, Address down, const std::vector<std::int64_t> &down_parts,
             Address up_bias, Address down_bias, bool gated, int function, float slope, float limit, float shift,
             std::int64_t rows, std::int64_t hidden, std::int64_t inner, std::int64_t experts, std::int64_t chosen,
             std::int64_t x_row, std::int64_t out_row, int threads, Address live, Address residual,
             std::int64_t residual_row, std::int64_t first) {
  ExpertsCall call{};
  call.x = pointer<const float>(x), call.index = pointer<const std::int64_t>(index);
  call.weights = pointer<const float>(weights), call.out = pointer<float>(out);
  call.residual = pointer<const float>(residual), call.residual_row = residual_row;
  call.num_ups = set_parts(up, up_parts, call.up, 2);
  set_parts(down, down_parts, &call.down, 1);
  call.up_bias = pointer<const float>(up_bias), call.down_bias = pointer<const float>(down_bias);
  call.gated = gated;
  call.activation = {static_cast<Function>(function), slope, limit, shift};
  call.rows = rows, call.hidden = hidden, call.inner = inner, call.experts = experts, call.chosen = chosen;
  call.x_row = x_row, call.out_row = out_row, call.first = first, call.threads = threads;
  call.live = pointer<const std::int64_t>(live);
  return kernel_of([call] { experts_cpu(call); });
}

Made choose(Address logits, Address bias, Address index, Address weights, std::int64_t rows, std::int64_t logits_row,
            int scores, bool renormalizes, bool shared_gate, float scale, std::int64_t experts, std::int64_t chosen,
            std::int64_t groups, std::int64_t top_groups, std::int64_t group_top, std::int64_t shared, Address x,
            Address norm, Address out, std::int64_t width, std::int64_t x_row, std::int64_t out_row, float eps,
            int threads, Address live) {
  ChooseCall call{};
  call.logits = pointer<const float>(logits), call.bias = pointer<const float>(bias);
  call.index = pointer<std::int64_t>(index), call.weights = pointer<float>(weights);
  call.rows = rows, call.logits_row = logits_row;
  call.choice = {static_cast<Scores>(scores),
                 renormalizes,
                 shared_gate,
                 scale,
                 experts,
                 chosen,
                 groups,
                 top_groups,
                 group_top,
                 shared};
  call.norm.x = pointer<const float>(x), call.norm.weight = pointer<const float>(norm);
  call.norm.out = pointer<float>(out), call.norm.width = width;
  call.norm.x_row = x_row, call.norm.out_row = out_row, call.norm.eps = eps;
  call.threads = threads, call.live = pointer<const std::int64_t>(live);
  return kernel_of([call] { choose_cpu(call); });
}

Made rms_norm(Address x, Address weight, Address out, std::int64_t rows, std::int64_t width, std::int64_t x_row,
              std::int64_t out_row, float eps, Address live) {
  const NormCall call{pointer<const float>(x),
                      pointer<const float>(weight),
                      pointer<float>(out),
                      rows,
                      width,
                      x_row,
                      out_row,
                      eps,
                      pointer<const std::int64_t>(live)};
  return kernel_of([call] { rms_norm_cpu(call); });
}

Made attend(Address qkv, Address rotary, Address q_norm, Address k_norm, Address sink_logits, Address gate,
            Address cache, Address out, Address page_table, Address base, Address count, Address starts,
            std::int64_t rows, std::int64_t width, std::int64_t offset, std::int64_t heads, std::int64_t kv_heads,
            std::int64_t key_size, std::int64_t value_size, std::int64_t page_size, int type, std::int64_t token_bytes,
            std::int64_t values, std::int64_t scales, std::int64_t table_width, std::int64_t rotary_rows,
            std::int64_t rotary_pairs, std::int64_t first_rotated, std::int64_t q_norm_heads, std::int64_t k_norm_heads,
            std::int64_t window, std::int64_t sinks, std::int64_t qkv_row, std::int64_t gate_row, float eps,
            float scale, float softcap, int threads) {
  AttendCall call{};
  call.qkv = pointer<const float>(qkv), call.rotary = pointer<const float>(rotary);
  call.q_norm = pointer<const float>(q_norm), call.k_norm = pointer<const float>(k_norm);
  call.sink_logits = pointer<const float>(sink_logits), call.gate = pointer<const float>(gate);
  call.cache = pointer<char>(cache), call.type = static_cast<CachedType>(type), call.out = pointer<float>(out);
  call.page_table = pointer<const std::int32_t>(page_table);
  call.base = pointer<const std::int64_t>(base), call.count = pointer<const std::int64_t>(count);
  call.starts = pointer<const std::int64_t>(starts);
  call.rows = rows, call.width = width, call.offset = offset;
  call.heads = heads, call.kv_heads = kv_heads, call.key_size = key_size, call.value_size = value_size;
  call.page_size = page_size, call.token_bytes = token_bytes, call.values = values, call.scales = scales;
  call.table_width = table_width;
  call.rotary_rows = rotary_rows, call.rotary_pairs = rotary_pairs, call.first_rotated = first_rotated;
  call.q_norm_heads = q_norm_heads, call.k_norm_heads = k_norm_heads;
  call.window = window, call.sinks = sinks, call.qkv_row = qkv_row, call.gate_row = gate_row;
  call.eps = eps, call.scale = scale, call.softcap = softcap, call.threads = threads;
  return kernel_of([call] { attend_cpu(call); });
}

HeadsCall heads_call(Address x, Address panels, int format, int activations, Address out, std::int64_t rows,
                     std::int64_t heads, std::int64_t inputs, std::int64_t outputs, std::int64_t x_row,
                     std::int64_t out_row, int threads, Address live) {
  HeadsCall call{};
  call.x = pointer<const float>(x), call.panels = pointer<const void>(panels), call.out = pointer<float>(out);
  call.format = static_cast<Format>(format), call.activations = static_cast<Activations>(activations);
  call.rows = rows, call.heads = heads, call.inputs = inputs, call.outputs = outputs;
  call.x_row = x_row, call.x_head = inputs, call.out_row = out_row, call.out_head = outputs;
  call.threads = threads, call.live = pointer<const std::int64_t>(live);
  return call;
}

Made latent_queries(Address x, Address latent, Address up, const std::vector<std::int64_t> &up_parts, Address up_orders,
                    Address up_norm, std::int64_t up_inputs, float up_eps, Address panels, Address norm, int format,
                    int activations, Address out, std::int64_t rows, std::int64_t heads, std::int64_t inputs,
                    std::int64_t outputs, std::int64_t rotated, std::int64_t x_row, std::int64_t out_row, float eps,
                    int threads, Address live) {
  LatentCall call{};
  call.queries =
      heads_call(x, panels, format, activations, out, rows, heads, inputs, outputs, x_row, out_row, threads, live);
  call.up.x = pointer<const float>(x);
  if (up) call.up.num_parts = set_parts(up, up_parts, call.up.parts, kMaxParts, up_orders, up_inputs);
  call.up.norm = pointer<const float>(up_norm), call.up.eps = up_eps;
  call.up.inputs = up_inputs, call.up.outputs = heads * (inputs + rotated), call.up.x_row = x_row;
  call.up.threads = threads;
  call.latent = pointer<const float>(latent), call.latent_row = x_row, call.rotated = rotated;
  call.norm = pointer<const float>(norm), call.eps = eps;
  return kernel_of([call] { latent_queries_cpu(call); });
}

Made multiply_heads(Address x, Address panels, int format, int activations, Address out, std::int64_t rows,
                    std::int64_t heads, std::int64_t inputs, std::int64_t outputs, std::int64_t x_row,
                    std::int64_t out_row, int threads, Address live) {
  const HeadsCall call =
      heads_call(x, panels, format, activations, out, rows, heads, inputs, outputs, x_row, out_row, threads, live);
  return kernel_of([call] { multiply_heads_cpu(call); });
}

Made pack(Address weight, std::int64_t element, const std::vector<std::int64_t> &sizes,
          const std::vector<std::int64_t> &strides, std::int64_t inputs, Address packed, std::int64_t first,
          std::int64_t panel_step, bool tiled) {
  PackCall call{};
  call.weight = pointer<const void>(weight), call.element = element, call.inputs = inputs;
  std::copy_n(sizes.begin(), 3, call.sizes), std::copy_n(strides.begin(), 3, call.strides);
  call.packed = pointer<void>(packed), call.first = first, call.panel_step = panel_step, call.tiled = tiled;
  return kernel_of([call] { pack_cpu(call); });
}

Made pack_blocks(int format, Address blocks, const std::vector<std::int64_t> &sizes,
                 const std::vector<std::int64_t> &strides, std::int64_t inputs, Address panels, std::int64_t first,
                 std::int64_t panel_step) {
  PackBlocksCall call{};
  call.format = static_cast<Format>(format), call.blocks = pointer<const void>(blocks), call.inputs = inputs;
  std::copy_n(sizes.begin(), 3, call.sizes), std::copy_n(strides.begin(), 3, call.strides);
  call.panels = pointer<void>(panels), call.first = first, call.panel_step = panel_step;
  return kernel_of([call] { pack_blocks_cpu(call); });
}

Made widen_blocks(int format, Address blocks, const std::vector<std::int64_t> &sizes,
                  const std::vector<std::int64_t> &strides, std::int64_t inputs, Address out, int threads) {
  WidenCall call{};
  call.format = static_cast<Format>(format), call.blocks = pointer<const void>(blocks), call.inputs = inputs;
  std::copy_n(sizes.begin(), 3, call.sizes), std::copy_n(strides.begin(), 3, call.strides);
  call.out = pointer<float>(out), call.threads = threads;
  return kernel_of([call] { widen_blocks_cpu(call); });
}

EmbedCall embed_call(Address weight, int format, int layout, Address tokens, Address out, std::int64_t rows,
                     std::int64_t vocab, std::int64_t width, float scale, Address live) {
  return {pointer<const void>(weight),
          static_cast<Format>(format),
          static_cast<EmbedLayout>(layout),
          pointer<const std::int64_t>(tokens),
          pointer<float>(out),
          rows,
          vocab,
          width,
          scale,
          pointer<const std::int64_t>(live)};
}

Made embed(Address weight, int format, int layout, Address tokens, Address out, std::int64_t rows, std::int64_t vocab,
           std::int64_t width, float scale, Address live) {
  const EmbedCall call = embed_call(weight, format, layout, tokens, out, rows, vocab, width, scale, live);
  return kernel_of([call] { embed_cpu(call); });
}

Made join_norms(Address weight, int format, int layout, Address tokens, Address hidden, Address embed_norm,
                Address hidden_norm, Address out, std::int64_t rows, std::int64_t vocab, std::int64_t width,
                std::int64_t hidden_row, float embed_eps, float hidden_eps, Address live) {
  const JoinCall call{embed_call(weight, format, layout, tokens, out, rows, vocab, width, 1, live),
                      pointer<const float>(hidden),
                      pointer<const float>(embed_norm),
                      pointer<const float>(hidden_norm),
                      hidden_row,
                      embed_eps,
                      hidden_eps};
  return kernel_of([call] { join_norms_cpu(call); });
}

Made take_rows(Address x, Address index, Address out, std::int64_t rows, std::int64_t width, std::int64_t size,
               Address live) {
  const TakeCall call{
      pointer<const float>(x),          pointer<const std::int64_t>(index), pointer<float>(out), rows, width, size,
      pointer<const std::int64_t>(live)};
  return kernel_of([call] { take_rows_cpu(call); });
}

// Makes a StridedCopy of up to 4 dimensions. Strides are in bytes.
Made strided_copy(Address to, Address from, const std::vector<std::int64_t> &sizes,
                  const std::vector<std::int64_t> &to_strides, const std::vector<std::int64_t> &from_strides,
                  std::int64_t element, Address live) {
  StridedCopy call{pointer<void>(to), pointer<const void>(from),        {1, 1, 1, 1}, {}, {},
                   element,           pointer<const std::int64_t>(live)};
  if (sizes.size() > 4) throw nb::value_error("a copy has at most 4 dimensions");
  const std::size_t before = 4 - sizes.size();
  call.to_strides[3] = call.from_strides[3] = element;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    call.sizes[before + i] = sizes[i];
    call.to_strides[before + i] = to_strides[i], call.from_strides[before + i] = from_strides[i];
  }
  return kernel_of([call] { copy_cpu(call); });
}

StateRows state_rows(Address base, Address count, Address starts, Address slots, Address source, Address target,
                     Address owed, Address saves, std::int64_t rows, std::int64_t width, std::int64_t offset,
                     std::int64_t speculative, std::int64_t num_slots) {
  return {pointer<const std::int64_t>(base),
          pointer<const std::int64_t>(count),
          pointer<const std::int64_t>(starts),
          pointer<const std::int64_t>(slots),
          pointer<const std::int64_t>(source),
          pointer<const std::int64_t>(target),
          pointer<const std::int64_t>(owed),
          pointer<const std::int64_t>(saves),
          rows,
          width,
          offset,
          speculative,
          num_slots};
}

RecurrentCache recurrent_cache(Address base, Address decay, Address key, Address value, std::int64_t base_row,
                               std::int64_t slot_row, std::int64_t draft_row, std::int64_t drafts, std::int64_t heads,
                               std::int64_t key_heads, std::int64_t key_size, std::int64_t value_size) {
  return {pointer<float>(base),
          pointer<float>(decay),
          pointer<float>(key),
          pointer<float>(value),
          base_row,
          slot_row,
          draft_row,
          drafts,
          heads,
          key_heads,
          key_size,
          value_size};
}

Made recur(const StateRows &rows, const RecurrentCache &cache, int kind, Address q, Address k, Address v, Address decay,
           Address beta, Address rates, Address gate_rates, Address gate_bias, Address out, std::int64_t q_row,
           std::int64_t k_row, std::int64_t v_row, std::int64_t decay_row, std::int64_t beta_row, int threads) {
  const RecurCall call{rows,
                       cache,
                       pointer<const float>(q),
                       pointer<const float>(k),
                       pointer<const float>(v),
                       pointer<const float>(decay),
                       pointer<const float>(beta),
                       pointer<const float>(rates),
                       pointer<const float>(gate_rates),
                       pointer<const float>(gate_bias),
                       pointer<float>(out),
                       q_row,
                       k_row,
                       v_row,
                       decay_row,
                       beta_row,
                       static_cast<Decay>(kind),
                       threads};
  return kernel_of([call] { recur_cpu(call); });
}

Made gated_norm(Address x, Address gate, Address weight, Address out, std::int64_t rows, std::int64_t heads,
                std::int64_t size, std::int64_t x_row, std::int64_t gate_row, float eps, int threads, Address live) {
  const GatedNormCall call{pointer<const float>(x),
                           pointer<const float>(gate),
                           pointer<const float>(weight),
                           pointer<float>(out),
                           rows,
                           heads,
                           size,
                           x_row,
                           gate_row,
                           eps,
                           threads,
                           pointer<const std::int64_t>(live)};
  return kernel_of([call] { gated_norm_cpu(call); });
}

Made settle_recurrence(const RecurrentCache &cache, int kind, Address rates, Address target, Address slots,
                       Address targets, Address counts, std::int64_t entries, std::int64_t num_slots, int threads) {
  const SettleCall call{cache,
                        pointer<const float>(rates),
                        pointer<const std::int64_t>(target),
                        pointer<const std::int64_t>(slots),
                        pointer<const std::int64_t>(targets),
                        pointer<const std::int64_t>(counts),
                        entries,
                        num_slots,
                        static_cast<Decay>(kind),
                        threads};
  return kernel_of([call] { settle_recurrence_cpu(call); });
}

ConvolutionCache convolution_cache(Address window, Address inputs, std::int64_t window_row, std::int64_t slot_row,
                                   std::int64_t draft_row, std::int64_t drafts, std::int64_t channels,
                                   std::int64_t taps) {
  return {pointer<float>(window), pointer<float>(inputs), window_row, slot_row, draft_row, drafts, channels, taps};
}

Made convolve(const StateRows &rows, const ConvolutionCache &cache, Address x, Address weight, Address bias,
              Address out, std::int64_t x_row, std::int64_t weight_row, std::int64_t weight_tap, bool silu,
              int threads) {
  const ConvolveCall call{rows,
                          cache,
                          pointer<const float>(x),
                          pointer<const float>(weight),
                          pointer<const float>(bias),
                          pointer<float>(out),
                          x_row,
                          weight_row,
                          weight_tap,
                          silu,
                          threads};
  return kernel_of([call] { convolve_cpu(call); });
}

Made settle_window(const ConvolutionCache &cache, Address target, Address slots, Address targets, Address counts,
                   std::int64_t entries, std::int64_t num_slots) {
  const SettleWindowCall call{cache,
                              pointer<const std::int64_t>(target),
                              pointer<const std::int64_t>(slots),
                              pointer<const std::int64_t>(targets),
                              pointer<const std::int64_t>(counts),
                              entries,
                              num_slots};
  return kernel_of([call] { settle_window_cpu(call); });
}

StatesCall states_call(Address storage, Address source, Address target, Address owed, std::int64_t row,
                       std::int64_t num_slots, int threads) {
  return {pointer<float>(storage),
          pointer<std::int64_t>(source),
          pointer<std::int64_t>(target),
          pointer<std::int64_t>(owed),
          row,
          num_slots,
          threads};
}

OpenCall open_call(Address records, Address length, Address last_token, Address request_ids, Address processors,
                   Address page_table, Address params, Address num_verified, Address drafts, Address token_mask,
                   Address temperatures, std::int64_t rows, std::int64_t record_size, std::int64_t slots,
                   std::int64_t table_width, std::int64_t max_drafts, std::int64_t mask_width,
                   std::int64_t temperatures_width) {
  return {rows,
          record_size,
          slots,
          table_width,
          max_drafts,
          mask_width,
          temperatures_width,
          pointer<const std::int64_t>(records),
          pointer<std::int64_t>(length),
          pointer<std::int64_t>(last_token),
          pointer<std::int64_t>(request_ids),
          pointer<std::int64_t>(processors),
          pointer<std::int32_t>(page_table),
          pointer<SlotRecord>(params),
          pointer<std::int64_t>(num_verified),
          pointer<std::int64_t>(drafts),
          pointer<std::int32_t>(token_mask),
          pointer<float>(temperatures)};
}

InputsCall inputs_call(Address slot, Address length, Address last_token, Address drafts, Address page_table,
                       Address base, Address tokens, Address pages, std::int64_t rows, std::int64_t sampling_rows,
                       std::int64_t width, std::int64_t slots, std::int64_t table_width) {
  return {rows,
          sampling_rows,
          width,
          slots,
          table_width,
          pointer<const std::int64_t>(slot),
          pointer<const std::int64_t>(length),
          pointer<const std::int64_t>(last_token),
          pointer<const std::int64_t>(drafts),
          pointer<const std::int32_t>(page_table),
          pointer<std::int64_t>(base),
          pointer<std::int64_t>(tokens),
          pointer<std::int32_t>(pages)};
}

ProposalsCall proposals_call(Address slot, Address proposed, Address records, Address drafts, std::int64_t rows,
                             std::int64_t num_drafts, std::int64_t slots) {
  return {rows,
          num_drafts,
          slots,
          pointer<const std::int64_t>(slot),
          pointer<const std::int64_t>(proposed),
          pointer<const SlotRecord>(records),
          pointer<std::int64_t>(drafts)};
}

// Launches a kernel as device work of the CPU driver, in stream order and without the GIL. It keeps `owner` alive.
void launch_kernel(std::uintptr_t stream, nb::handle kernel, nb::handle owner, const std::string &name) {
  NativeTask task;
  task.run = [](void *data) { static_cast<const Kernel *>(data)->run(); };
  task.data = nb::cast<Kernel *>(kernel);
  task.owner = nb::make_tuple(nb::borrow(kernel), nb::borrow(owner)).release().ptr();
  task.release = [](void *object) { Py_DECREF(static_cast<PyObject *>(object)); };
  task.name = name.c_str();
  launch_native_device(reinterpret_cast<cu::CUstream>(stream), task);
}

}  // namespace

void bind_kernels(nb::module_ &m) {
  nb::class_<Kernel>(m, "Kernel").def("run", &Kernel::run, nb::call_guard<nb::gil_scoped_release>());
  m.def("launch_kernel", &launch_kernel, nb::arg("stream"), nb::arg("kernel"), nb::arg("owner").none(),
        nb::arg("name"));
  m.def("chain_kernels", [](bool chains) { chains_kernels = chains; }, nb::arg("chains"));  // CUDA kernels only
  m.def("linear_cpu", &linear);
  m.def("experts_cpu", &experts);
  m.def("choose_cpu", &choose);
  m.def("pack_cpu", &pack);
  m.def("pack_blocks_cpu", &pack_blocks);
  m.def("widen_blocks_cpu", &widen_blocks);
  m.def("num_formats", [] { return kNumFormats; });
  m.def("block_size", [](int format) {
    const Block &block = block_of(static_cast<Format>(format));
    return std::tuple(block.inputs, block.bytes, block.half_bytes);
  });
  m.def("panel_bytes", [](int format, int activations, std::int64_t inputs) {
    return panel_bytes(static_cast<Format>(format), static_cast<Activations>(activations), inputs);
  });
  m.def("has_fast_bfloat16", has_fast_bfloat16);
  m.def("can_multiply", [](int format, int activations) {
    return can_multiply(static_cast<Format>(format), static_cast<Activations>(activations));
  });
  instruction_set_name();  // throws here, and not in a kernel, if WEFT_INSTRUCTION_SET has a wrong value
  m.def("instruction_set", &instruction_set_name);
  m.def("rms_norm_cpu", &rms_norm);
  m.def("add_norm_cpu", &add_norm);
  m.def("attend_cpu", &attend);
  m.def("latent_queries_cpu", &latent_queries);
  m.def("multiply_heads_cpu", &multiply_heads);
  m.def("embed_cpu", &embed);
  m.def("join_norms_cpu", &join_norms);
  m.def("take_rows_cpu", &take_rows);
  m.def("strided_copy_cpu", &strided_copy, nb::arg("to"), nb::arg("source"), nb::arg("sizes"), nb::arg("to_strides"),
        nb::arg("source_strides"), nb::arg("element"), nb::arg("live") = 0);
  nb::class_<StateRows>(m, "StateRows");
  m.def("state_rows", &state_rows);
  nb::class_<RecurrentCache>(m, "RecurrentCache");
  m.def("recurrent_cache", &recurrent_cache);
  m.def("recur_cpu", &recur);
  m.def("gated_norm_cpu", &gated_norm);
  m.def("settle_recurrence_cpu", &settle_recurrence);
  nb::class_<ConvolutionCache>(m, "ConvolutionCache");
  m.def("convolution_cache", &convolution_cache);
  m.def("convolve_cpu", &convolve);
  m.def("settle_window_cpu", &settle_window);
  nb::class_<StatesCall>(m, "StatesCall");
  m.def("states_call", &states_call);
  m.def("open_states_cpu", [](const StatesCall &call, Address slots, std::int64_t count) {
    return kernel_of([=] { open_states_cpu(call, pointer<const std::int64_t>(slots), count); });
  });
  m.def("load_states_cpu", [](const StatesCall &call, Address sources, Address slots, std::int64_t count) {
    return kernel_of([=] {
      load_states_cpu(call, pointer<const std::int64_t>(sources), pointer<const std::int64_t>(slots), count);
    });
  });
  m.def("branch_states_cpu", [](const StatesCall &call, Address slots, Address parents, std::int64_t count) {
    return kernel_of([=] {
      branch_states_cpu(call, pointer<const std::int64_t>(slots), pointer<const std::int64_t>(parents), count);
    });
  });
  nb::class_<OpenCall>(m, "OpenCall");
  m.def("open_call", &open_call);
  m.def("open_slots_cpu", [](const OpenCall &call) { return kernel_of([call] { open_slots_cpu(call); }); });
  m.def("open_slots_cuda", [](const OpenCall &call, Address stream) {
    const nb::gil_scoped_release release;
    return open_slots_cuda(call, pointer<void>(stream));
  });
  nb::class_<InputsCall>(m, "InputsCall");
  m.def("inputs_call", &inputs_call);
  m.def("read_slots_cpu", [](const InputsCall &call) { return kernel_of([call] { read_slots_cpu(call); }); });
  m.def("read_slots_cuda", [](const InputsCall &call, Address stream) {
    const nb::gil_scoped_release release;
    return read_slots_cuda(call, pointer<void>(stream));
  });
  nb::class_<ProposalsCall>(m, "ProposalsCall");
  m.def("proposals_call", &proposals_call);
  m.def("take_proposals_cpu",
        [](const ProposalsCall &call) { return kernel_of([call] { take_proposals_cpu(call); }); });
  m.def("take_proposals_cuda", [](const ProposalsCall &call, Address stream) {
    const nb::gil_scoped_release release;
    return take_proposals_cuda(call, pointer<void>(stream));
  });
}

}  // namespace weft
